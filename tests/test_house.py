"""The house's own rules, each a few lines: names, commands, imports, sizes, broad excepts, docs that tell the truth."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ettrain
from ettrain.cli import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def test_public_names_are_these():
    assert ettrain.__all__ == sorted(ettrain.__all__)
    assert set(ettrain.__all__) == {
        "Checkpointer",
        "CompileCache",
        "Startup",
        "__version__",
        "first_batch",
        "process_groups",
        "publish",
        "stage",
        "step",
        "steps",
        "warm_compile",
    }
    for name in ettrain.__all__:
        assert getattr(ettrain, name) is not None


def test_commands_are_these():
    assert list(COMMANDS) == ["run", "watch", "report", "import", "cache", "autotune", "checkpoint", "publish", "doctor"]


def test_importing_ettrain_loads_nothing_heavy():
    code = "import sys; import ettrain; print([m for m in ('torch', 'numpy', 'json', 'threading', 'mmap') if m in sys.modules])"
    output = subprocess.run(
        [sys.executable, "-S", "-c", f"sys=__import__('sys'); sys.path.insert(0, {str(ROOT / 'src')!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert output.stdout.strip() == "[]"


def test_the_command_line_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; from ettrain.cli import main; main(['--version'])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert output.stdout.startswith("ettrain "), output.stderr


def test_no_file_is_longer_than_500_lines():
    assert [str(path) for path in SOURCES if len(path.read_text().splitlines()) > 500] == []


def test_no_function_is_longer_than_60_lines():
    long = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 60:
                long.append(f"{path.name}:{node.name}")
    assert long == []


def test_broad_excepts_stand_only_inside_the_training_process():
    allowed = {"events.py", "logs_specs.py"}
    wrong = []
    for path in SOURCES:
        inside = path.relative_to(ROOT / "src/ettrain").parts[0] in ("record", "boost") or path.name in allowed
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler) and not inside:
                broad = node.type is None or (isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException"))
                if broad:
                    wrong.append(f"{path.name}:{node.lineno}")
    assert wrong == []


def test_time_is_asked_for_in_clock_alone():
    asks = re.compile(r"\btime\.(time|monotonic|perf_counter|time_ns|monotonic_ns)\(|datetime\.(now|utcnow)\(")
    allowed = {"clock.py", "_ettrain_boot.py"}  # stage 0 of the recorder imports nothing of ours
    wrong = [path.name for path in SOURCES if path.name not in allowed and asks.search(path.read_text())]
    assert wrong == []


def test_every_stage_and_leaf_is_in_the_docs():
    from ettrain import lifecycle

    text = (ROOT / "docs/accounting.md").read_text()
    names = {*lifecycle.COMPONENT, *lifecycle.PRIORITY}
    assert {name for name in names if name not in text} == set()


def test_files_named_in_the_readme_exist():
    text = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    folders = re.findall(r"^\| `([a-z_./]+/)`", text, flags=re.MULTILINE)
    missing = [name for name in links + folders if not (ROOT / name).exists() and not (ROOT / "src/ettrain" / name).exists()]
    assert missing == []


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_explains_itself(command):
    output = subprocess.run(
        [sys.executable, "-c", f"from ettrain.cli import main; main([{command!r}, '--help'])"], capture_output=True, text=True, check=False
    )
    assert output.returncode == 0
    assert "usage:" in output.stdout


def test_a_bad_word_is_a_usage_error_and_no_trace():
    output = subprocess.run(
        [sys.executable, "-c", "from ettrain.cli import main; raise SystemExit(main(['nonsense']))"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert output.returncode == 2
    assert "Traceback" not in output.stderr


def test_the_wheel_takes_along_what_is_no_package():
    import tomllib

    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["ettrain"]
    package = ROOT / "src/ettrain"
    taken = {path for pattern in patterns for path in package.glob(pattern)}
    packages = {path.parent for path in package.rglob("__init__.py")}
    loose = {path for path in package.rglob("*") if path.is_file() and (path.suffix != ".py" or path.parent not in packages)}
    assert {path for path in loose - taken if "__pycache__" not in path.parts} == set()
