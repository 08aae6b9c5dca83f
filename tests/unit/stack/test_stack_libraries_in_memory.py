from vindicate.stack.libraries import mapped_files, versions_in

HOME = "/opt/venv/lib/python3.12/site-packages"
MAPS = f"""\
7f00-7f10 r--p 00000000 fe:00 1     {HOME}/nvidia/nccl/lib/libnccl.so.2
7f10-7f20 r-xp 00001000 fe:00 1     {HOME}/nvidia/nccl/lib/libnccl.so.2
7f20-7f30 rw-p 00000000 00:00 0
7f30-7f40 rw-p 00000000 00:00 0     [heap]
7f40-7f50 r--p 00000000 fe:00 2     /a folder/with blanks/lib.so
7f50-7f60 r--p 00000000 fe:00 3     /usr/lib/libnccl.so.2 (deleted)
"""
INSTALLED = {HOME: {"nvidia_nccl_cu12": "2.27.3", "torch": "2.9.0", "flashinfer_python": "0.4.1", "numpy": "2.0"}}
PLAIN = {"torch": "2.9.0", "flashinfer": "0.4.1"}


def test_the_files_of_a_process_are_read_from_its_maps():
    assert mapped_files(MAPS) == [
        f"{HOME}/nvidia/nccl/lib/libnccl.so.2",
        "/a folder/with blanks/lib.so",
        "/usr/lib/libnccl.so.2 (deleted)",
    ]
    assert mapped_files("") == []


def test_a_library_is_told_of_only_when_it_is_in_memory_and_from_where_its_version_is_known():
    assert versions_in([f"{HOME}/numpy/x.so"], INSTALLED) == PLAIN
    assert versions_in([f"{HOME}/nvidia/nccl/lib/libnccl.so.2"], INSTALLED) == {**PLAIN, "nccl": "2.27.3"}
    assert versions_in(["/usr/lib/libnccl.so.2"], INSTALLED) == PLAIN, "the system's own, of which nothing is known"
    assert versions_in(["/usr/lib/libnccl.so.2.22.3"], INSTALLED) == {**PLAIN, "nccl": "2.22.3"}
    assert versions_in(["/usr/local/cuda/lib64/libcudart.so.12.8.90"], {}) == {"cuda": "12.8.90"}


def test_a_library_whose_file_was_replaced_is_not_known():
    assert versions_in([f"{HOME}/nvidia/nccl/lib/libnccl.so.2 (deleted)"], INSTALLED)["nccl"] is None
