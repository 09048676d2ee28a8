"""The page of a report in a real browser: nothing is loaded, nothing hangs over, all is drawn."""

import json
import random
import subprocess
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from statetap_contract import CaptureSpec, DeadLetter, FailedTry, Prompt
from statetap_local.made_runs import keyed, write_run
from statetap_producer.run.plan import Plan, PlannedPrompt
from statetap_producer.run.run_folder import RunFolder
from statetap_store import Provenance, ShardSet

from .chromium import Chromium, running_chromium

SPEC = CaptureSpec("a-model-with-a-name", "r1", (2, 15, 27), "post", 16, "float32")
NUM_PLANNED, NUM_STORED, NUM_DEAD = 300, 220, 30

#: Boxes that reach beyond the window on its right.
OVERHANGING = """
[...document.body.querySelectorAll('*')]
    .filter(each => each.getBoundingClientRect().right > innerWidth + 0.5)
    .map(each => each.tagName + ' ' + each.textContent.slice(0, 40))
"""

#: Pairs of labels of one axis that lie on one another.
OVERLAPPING = """
[...document.querySelectorAll('.x, .y')].flatMap(axis => {
    const boxes = [...axis.querySelectorAll('span')]
        .map(each => each.getBoundingClientRect()).filter(box => box.width);
    return boxes.flatMap((one, place) => boxes.slice(place + 1).filter(other =>
        one.left < other.right && other.left < one.right
        && one.top < other.bottom && other.top < one.bottom)).map(() => axis.textContent);
})
"""

#: Areas of drawings, and how many bars, lines and dots in them have any extent.
DRAWN = """
[...document.querySelectorAll('svg')]
    .filter(each => getComputedStyle(each).display !== 'none' && each.getClientRects().length)
    .map(each => {
        const box = each.getBoundingClientRect();
        const shapes = [...each.querySelectorAll('.front, .behind, polyline, .box, .dot')];
        return [box.width, box.height,
            shapes.filter(shape => shape.getBoundingClientRect().width > 0).length];
    })
"""

#: Colours of paper and ink.
COLOURS = """
(({backgroundColor, color}) => [backgroundColor, color])(getComputedStyle(document.body))
"""


def store(run: RunFolder, rows: list[PlannedPrompt], numbers: np.random.Generator) -> None:
    """Samples by two workers of two hosts, with first rows far above all others."""
    for worker, host in enumerate(("a-long-host-name.cluster.example", "gpu-2")):
        name = f"worker-{worker:02d}"
        provenance = Provenance(run.name, name, host, "0.5.23", "0.1.0", (3, 16, 28))
        with ShardSet(run.shards, name, 1 << 20, SPEC, provenance) as shards:
            for row in rows[worker::2]:
                shape = (row.prompt.num_tokens, SPEC.row_width)
                states = numbers.normal(size=shape).astype(np.float32)
                states[0] *= 200
                mask = np.frombuffer(row.prompt.loss_mask(), np.uint8)
                shards.append(row.key, np.array(row.prompt.token_ids, np.int32), mask, states)
            shards.commit()


def write_lines(folder: Path, lines: list[dict[str, object]]) -> None:
    folder.mkdir()
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "worker-00.jsonl").write_text(text)


def prompts(lengths: list[int]) -> Iterator[tuple[str, Prompt]]:
    for number, length in enumerate(lengths):
        ids = array("i", [number, *range(1, length)])
        yield keyed(SPEC, Prompt(ids, ((length // 3, length),)))


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run in which much failed, with messages long, hostile or from right to left."""
    chance = random.Random(8)
    lengths = [int(chance.lognormvariate(4, 0.8)) + 3 for _ in range(NUM_PLANNED)]
    run = write_run(tmp_path_factory.mktemp("runs") / "troubled", SPEC, prompts(lengths))
    rows = list(Plan(run.plan_file, NUM_PLANNED).rows())
    store(run, rows[:NUM_STORED], np.random.default_rng(8))
    messages = (
        "<script>document.title = 'owned'</script>",
        "\u0641\u0634\u0644 \u202e!diam",
        "x" * 500,
        "row 7 holds token 9 and the prompt has 12 there",
    )
    moment, server = "2027-01-15T08:00:00+00:00", "http://a-long-host-name.cluster.example:30000"
    dead = rows[NUM_STORED : NUM_STORED + NUM_DEAD]
    write_lines(
        run.ledger,
        [
            DeadLetter(row.key, f"reason-{n % 5}", messages[n % 4], 6, server, moment).to_json()
            for n, row in enumerate(dead)
        ],
    )
    write_lines(
        run.tries,
        [
            FailedTry(row.key, 1, f"reason-{chance.randrange(5)}", server, moment).to_json()
            for row in dead * 3 + chance.sample(rows, 80)
        ],
    )
    (run.shards / "worker-02-00001.h5").write_bytes(b"not a shard")
    return run


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of which nothing is stored."""
    return write_run(tmp_path_factory.mktemp("runs") / "empty", SPEC, prompts([5, 9]))


def report_on(run: RunFolder, exit_code: int) -> Path:
    """Has the command write the page, as a person does."""
    out = run.path / "report.html"
    command = [str(Path(sys.executable).with_name("statetap")), "report"]
    told = subprocess.run(
        [*command, "--run", str(run.path), "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert told.returncode == exit_code, told.stderr
    return out


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with running_chromium(tmp_path_factory.mktemp("chromium") / "profile") as browser:
        yield browser


def num_colours(browser: Chromium) -> int:
    """Colours of the page's picture, drawn anew in a canvas; a blank page has one."""
    shot = browser.ask("Page.captureScreenshot", captureBeyondViewport=True)
    browser.ask("Page.navigate", url="about:blank")
    script = f"""
        new Promise(done => {{
            const image = new Image();
            image.onload = () => {{
                const canvas = document.createElement('canvas');
                [canvas.width, canvas.height] = [image.width, image.height];
                const context = canvas.getContext('2d');
                context.drawImage(image, 0, 0);
                const data = context.getImageData(0, 0, image.width, image.height).data;
                done(new Set(new Uint32Array(data.buffer)).size);
            }};
            image.src = 'data:image/png;base64,{shot["data"]}';
        }})
    """
    answer = browser.ask(
        "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
    )
    return int(answer["result"]["value"])


def check_page(browser: Chromium, page: Path, width: int) -> list[Any]:
    """What must hold for every page at every width; gives the drawings."""
    assert browser.requests == [page.as_uri()]
    assert browser.complaints == []
    assert browser.evaluate("innerWidth") == width
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate(OVERHANGING) == []
    assert browser.evaluate(OVERLAPPING) == []
    assert browser.evaluate("document.scripts.length") == 0
    drawings: list[Any] = browser.evaluate(DRAWN)
    return drawings


@pytest.mark.parametrize("width", [1280, 390])
def test_a_run_with_failures(browser: Chromium, troubled: RunFolder, width: int) -> None:
    """Every plot is drawn at its size; a script in a message is read and not run."""
    page = report_on(troubled, exit_code=1)
    browser.open(page, width)
    drawings = check_page(browser, page, width)
    # Two of lengths and masks, two over time, a line for each of two hosts and two workers where
    # there is room, a strip for each of four slots.
    assert len(drawings) == (12 if width == 1280 else 8)
    assert all(wide > 80 and high > 20 and shapes for wide, high, shapes in drawings)
    assert browser.evaluate("document.title") == "troubled: a run of statetap"
    text = browser.evaluate("document.body.innerText")
    assert "<script>document.title = 'owned'</script>" in text
    assert "worker-02-00001.h5" in text
    assert num_colours(browser) > 20


@pytest.mark.parametrize("width", [1280, 390])
def test_a_run_with_nothing_stored(browser: Chromium, empty: RunFolder, width: int) -> None:
    """The page is whole, with the plots of what is planned."""
    page = report_on(empty, exit_code=0)
    browser.open(page, width)
    drawings = check_page(browser, page, width)
    assert len(drawings) == 2
    assert all(shapes for _, _, shapes in drawings)
    assert num_colours(browser) > 20


def test_in_the_dark_and_on_paper(browser: Chromium, troubled: RunFolder) -> None:
    """Dark where people want that, white on paper even so, and printed without being cut off."""
    page = report_on(troubled, exit_code=1)
    browser.open(page, 1280, scheme="dark")
    check_page(browser, page, 1280)
    paper, ink = browser.evaluate(COLOURS)
    assert (paper, ink) == ("rgb(20, 23, 26)", "rgb(232, 234, 237)")
    assert browser.print_pdf().startswith(b"%PDF")
    browser.ask("Emulation.setEmulatedMedia", media="print")
    paper, ink = browser.evaluate(COLOURS)
    assert (paper, ink) == ("rgb(255, 255, 255)", "rgb(0, 0, 0)")
