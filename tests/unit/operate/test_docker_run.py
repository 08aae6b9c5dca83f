"""Scripts with a docker run line and a knob: changed in the value's bytes only, or refused with the line; bash is the judge."""

import shutil
import subprocess

import pytest

from vindicate.errors import MisuseError
from vindicate.operate.docker_run import edit_run_env, read_run_env
from vindicate.operate.script_arg import edit_arg, read_arg

BASH = shutil.which("bash")

# name: (script, with K=512, without K); it is 256 before.
ENV = {
    "one line": ("docker run -d --name x -e K=256 image --a 1\n", "docker run -d --name x -e K=512 image --a 1\n", "docker run -d --name x image --a 1\n"),
    "continued": (
        'docker rm -f x || true\nexec docker run --rm -it \\\n  --gpus all \\\n  -e "A=$A" \\\n  --env "K=256" \\\n  image \\\n  --a 1\n',
        'docker rm -f x || true\nexec docker run --rm -it \\\n  --gpus all \\\n  -e "A=$A" \\\n  --env "K=512" \\\n  image \\\n  --a 1\n',
        'docker rm -f x || true\nexec docker run --rm -it \\\n  --gpus all \\\n  -e "A=$A" \\\n  image \\\n  --a 1\n',
    ),
    "attached": ('docker run -eK=256 --env=A=1 -p8000:80 "$IMAGE"\n', 'docker run -eK=512 --env=A=1 -p8000:80 "$IMAGE"\n', 'docker run --env=A=1 -p8000:80 "$IMAGE"\n'),
    "long, joined": ("podman run --env=K=256 image\n", "podman run --env=K=512 image\n", "podman run image\n"),
    "options in an array": (
        'OPTS=(\n  --rm\n  -e K=256  # k\n)\ndocker run "${OPTS[@]}" image\n',
        'OPTS=(\n  --rm\n  -e K=512  # k\n)\ndocker run "${OPTS[@]}" image\n',
        'OPTS=(\n  --rm\n  # k\n)\ndocker run "${OPTS[@]}" image\n',
    ),
    "container run": ("docker container run -itd -e K=256 image\n", "docker container run -itd -e K=512 image\n", "docker container run -itd image\n"),
    "a file beside it": ("docker run --env-file e -e K=256 image\n", "docker run --env-file e -e K=512 image\n", MisuseError),
}  # fmt: skip

ABSENT = {
    "one line": ("docker run --name x image --a 1\n", "docker run --name x -e K=512 image --a 1\n"),
    "behind others": ("docker run --env A=1 --name x image\n", "docker run --env A=1 --env K=512 --name x image\n"),
    "continued": ("docker run \\\n  --rm \\\n  image --a\n", "docker run \\\n  --rm \\\n  -e K=512 \\\n  image --a\n"),
    "nothing but the image": ("docker run image\n", "docker run -e K=512 image\n"),
}

REFUSED = {
    "an expansion": ("docker run -e K=$K image\n", 1),
    "passed on": ("export K=256\ndocker run -e K image\n", 2),
    "twice": ("docker run -e K=1 \\\n  -e K=2 image\n", 2),
    "a file": ("docker run --env-file e image\n", 1),
    "any variable": ('docker run -e "$SETTING" image\n', 1),
    "in the container's own shell": ("docker run image sh -c 'K=1 serve'\n", 1),
    "an unknown option": ("docker run --what x -e K=1 image\n", 1),
    "another command": ("docker start x\n", 1),
    "no docker": ("serve --a 1\n", 1),
    "two containers": ("docker run -d a\ndocker run -d b\n", 1),
    "sometimes": ("if true; then\n  docker run -e K=1 image\nfi\n", 2),
    "options in a variable": ("docker run $OPTS -e K=1 image\n", 1),
    "no image": ("docker run -e K=1\n", 1),
}


def argv_in_bash(source, folder):
    (folder / "docker").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {folder}/argv\n')
    (folder / "docker").chmod(0o755)
    shutil.copy(folder / "docker", folder / "podman")
    subprocess.run([BASH, "-c", source], env={"PATH": f"{folder}:/usr/bin:/bin"}, timeout=10, check=False, capture_output=True)  # fmt: skip
    return (folder / "argv").read_text().splitlines()


@pytest.mark.parametrize("name", ENV)
def test_only_the_bytes_of_a_variables_value_change(name, tmp_path):
    before, after, without = ENV[name]
    (tmp_path / "run.sh").write_text(before)
    value, line = read_run_env(tmp_path / "run.sh", "K")
    assert value == "256"
    assert "K=256" in before.splitlines()[line - 1]
    assert edit_run_env(before.encode(), "K", "512").decode() == after
    assert edit_run_env(before.encode(), "K", "256").decode() == before
    assert any("K=512" in word for word in argv_in_bash(after, tmp_path))
    if isinstance(without, str):
        assert edit_run_env(before.encode(), "K", None).decode() == without
        assert not any("K=" in word for word in argv_in_bash(without, tmp_path))
    else:
        with pytest.raises(without):
            edit_run_env(before.encode(), "K", None)


@pytest.mark.parametrize("name", ABSENT)
def test_an_absent_variable_is_added_in_the_scripts_style_and_comes_out_again(name):
    before, after = ABSENT[name]
    assert edit_run_env(before.encode(), "K", "512").decode() == after
    assert edit_run_env(after.encode(), "K", None).decode() == before


@pytest.mark.parametrize("value", ["", "a b", "it's", "$HOME", '"', "-x", "ü"])
@pytest.mark.parametrize("name", [*ENV, *ABSENT])
def test_any_value_arrives_as_it_was_given(name, value, tmp_path):
    before = {**ENV, **ABSENT}[name][0]
    edited = edit_run_env(before.encode(), "K", value).decode()
    assert any(word.endswith(f"K={value}") for word in argv_in_bash(edited, tmp_path))


@pytest.mark.parametrize("name", REFUSED)
def test_a_script_that_is_not_understood_is_refused_with_its_line(name, tmp_path):
    source, line = REFUSED[name]
    path = tmp_path / "run.sh"
    path.write_text(source)
    with pytest.raises(MisuseError) as caught:
        read_run_env(path, "K")
    assert caught.value.problem.startswith(f"{path}:{line}: ")
    for value in ("512", None):
        with pytest.raises(MisuseError):
            edit_run_env(source.encode(), "K", value, path=path)


@pytest.mark.parametrize(("before", "after"), [
    ("docker run --rm --max-cap 1 image --max-cap 64\n", MisuseError),
    ("docker run --rm -e A=1 image --max-cap 64 --b\n", "docker run --rm -e A=1 image --max-cap 512 --b\n"),
    ("docker run image vllm serve m --max-cap=64\n", "docker run image vllm serve m --max-cap=512\n"),
    ("sudo docker run --rm image --max-cap 64\n", "sudo docker run --rm image --max-cap 512\n"),
    ("docker run -d \\\n  image \\\n  serve \\\n  --max-cap 64\n", "docker run -d \\\n  image \\\n  serve \\\n  --max-cap 512\n"),
    ("docker run image sh -c 'serve'\n", MisuseError),
    ("docker run image bash run.sh --max-cap 64\n", MisuseError),
])  # fmt: skip
def test_a_flag_stands_behind_the_image(before, after, tmp_path):
    (tmp_path / "run.sh").write_text(before)
    if isinstance(after, str):
        assert read_arg(tmp_path / "run.sh", "max-cap", container=True).value == "64"
        assert edit_arg(before.encode(), "max-cap", "512", container=True).decode() == after
    else:
        with pytest.raises(after):
            edit_arg(before.encode(), "max-cap", "512", container=True)
