"""Pages agree with the files and settings that they describe."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml
from bench import records
from tools import dashboard, man_page, models_page, performance_page, rate_pictures
from tools.settings_page import PAGE, page

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
MOST_WORDS = 1000  # of the README: what it is and where to go on


def test_the_settings_page_is_what_config_says() -> None:
    assert PAGE.read_text() == page(), "run: python tools/settings_page.py"


def test_the_manual_page_is_what_the_commands_help_says_and_groff_has_no_complaint() -> None:
    assert man_page.PAGE.read_text() == man_page.page(), "run: python tools/man_page.py"

    drawn = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", "-P-cbou", "-rLL=80n", man_page.PAGE],
        capture_output=True,
        check=True,
        text=True,
    )
    assert drawn.stderr == ""
    assert "quantize [MODEL] -o FOLDER" in drawn.stdout
    assert "--max-num-seqs" in drawn.stdout


def test_the_models_page_is_what_the_families_say() -> None:
    assert models_page.PAGE.read_text() == models_page.page(), "run: python tools/models_page.py"


def test_the_performance_page_its_picture_and_the_readme_s_table_are_what_the_results_say() -> None:
    measured = performance_page.Measured()
    run = "run: python tools/performance_page.py"

    assert performance_page.PAGE.read_text() == performance_page.page(measured), run
    assert performance_page.PICTURE.read_text() == performance_page.speed_picture(measured), run
    assert performance_page.with_block(README, performance_page.readme_block(measured)) == README, run
    assert performance_page.readme_block(measured) in README
    for path, text in rate_pictures.rate_pictures(measured, performance_page.PAGE.parent).items():
        assert path.read_text() == text, run


def test_every_file_of_results_is_named_on_a_page_and_those_of_figures_have_one_form() -> None:
    folder = ROOT / "bench" / "results"
    named = "".join(page.read_text() for page in (folder / "README.md", ROOT / "docs" / "performance.md"))
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 10

    unnamed = [name for name in files if name != "README.md" and name not in named and "instructions/" not in name]
    assert unnamed == [], "figures go to <kind>/<machine>.json by bench/records.py, and so onto the page"
    for path in folder.glob("*/*"):
        text = path.read_text()
        assert records.text_of(records.read(path)) == text, path


def test_the_readme_is_read_in_five_minutes() -> None:
    assert len(README.split()) <= MOST_WORDS


def test_every_path_that_a_page_names_is_there() -> None:
    pages = [README, *(page.read_text() for page in (ROOT / "docs").glob("*.md"))]
    named = {
        name
        for page in pages
        for name in re.findall(r"`((?:app|native|tests|tools|bench|docs|deploy|ansible|\.ci)/[\w./*-]*)`", page)
    }
    assert len(named) > 10

    missing = [path for path in named if not any(ROOT.glob(path.rstrip("/")))]

    assert not missing


def test_every_paper_that_the_code_names_is_in_the_bibliography() -> None:
    number = re.compile(r"arXiv[: ](\d{4}\.\d{5})")
    code = [path for top in ("app", "native", "bench", "tools") for path in (ROOT / top).rglob("*")]
    sources = [path for path in code if path.suffix in (".py", ".pyi", ".h", ".cpp")]
    named = {paper for path in sources for paper in number.findall(path.read_text())}
    assert len(named) > 8

    assert named - set(number.findall((ROOT / "docs" / "bibliography.md").read_text())) == set()


def test_the_map_has_every_folder_and_names_nothing_else() -> None:
    block = ARCHITECTURE.split("## Map of the code")[1].split("```")[1]
    mapped = {
        line.split()[0].rstrip("/") for line in block.splitlines() if line.startswith(("app/", "native/", "tests/"))
    }

    there = {
        folder.relative_to(ROOT).as_posix()
        for top in ("app/forearm", "native", "tests")
        for folder in (ROOT / top).iterdir()
        if folder.is_dir() and folder.name != "__pycache__"
    }

    assert mapped - {"app/forearm"} == there


def test_every_page_that_a_page_links_is_there() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md")]
    links = [
        (page, link.partition("#")[0])
        for page in pages
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text())
        if not link.startswith(("http", "#"))
    ]
    assert len(links) > 20

    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_the_commands_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_project_speaks_of_itself_alone() -> None:
    places = re.compile(r"/work/|/tmp/|/root/(?!\.cache/huggingface)|/home/\w")  # vLLM's place in a container
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "Makefile", ROOT / ".ci" / "run"]

    assert [page.name for page in pages if places.search(page.read_text())] == []


def test_the_dashboard_is_what_its_tool_writes() -> None:
    assert dashboard.PATH.read_text() == dashboard.text(), "run: python tools/dashboard.py"


def test_every_alarm_has_its_page_and_every_page_its_alarm() -> None:
    rules = yaml.safe_load((ROOT / "docs/grafana/alarms.yml").read_text())["groups"][0]["rules"]
    alarms = [rule["alert"] for rule in rules]
    assert len(alarms) == len(set(alarms)) > 8

    explained = re.findall(r"^## (\w+)$", (ROOT / "docs/alarms.md").read_text(), re.MULTILINE)

    assert explained == alarms
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] for rule in rules)
