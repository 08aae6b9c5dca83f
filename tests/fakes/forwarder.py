"""As the program of a container engine that publishes a port: bytes pass in both directions. Usage: forwarder.py PORT HOST PORT"""

import asyncio
import sys


async def main(port, to_host, to_port):
    async def connection(reader, writer):
        try:
            there_reader, there_writer = await asyncio.open_connection(to_host, to_port)
        except OSError:
            writer.close()
            return

        async def pump(source, target):
            try:
                while data := await source.read(65536):
                    target.write(data)
                    await target.drain()
            except ConnectionError:
                pass
            finally:
                target.close()

        await asyncio.gather(pump(reader, there_writer), pump(there_reader, writer))

    server = await asyncio.start_server(connection, "127.0.0.1", port, backlog=1024)
    async with asyncio.timeout(90):
        await server.serve_forever()


asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
