"""The page of `tapehead inspect --html` in a real browser, without a window.

page_test.py FOLDER CHROMEDRIVER CHROMIUM: FOLDER holds what page_cases wrote.
"""

import json
import os
import re
import sys
import traceback

from webdriver import Browser

folder, driver, chromium = sys.argv[1:]
HOSTILE = '</script><img src=x onerror="window.hacked = true">'


def numbers(name):
    with open(os.path.join(folder, name + ".json"), encoding="utf-8") as file:
        return json.load(file)


BLOCK, LONG = numbers("block"), numbers("long")
ROWS = BLOCK["rows"]


def six(x):
    """As the page shows a number: six digits."""
    return float(f"{x:.6g}")


def equal(shown, expected, what):
    assert shown == expected, f"{what}: shown {shown!r}, expected {expected!r}"


def path_of(name):
    return os.path.join(folder, name)


def open_block(b, width=1280, height=800, scheme="light"):
    b.screen(width, height, scheme)
    b.open(path_of("block.html"))


def text(b, selector):
    return b.run("return document.querySelector(arguments[0]).innerText", selector)


def count(b, selector):
    return b.run("return document.querySelectorAll(arguments[0]).length", selector)


def texts(b, selector):
    return b.run(
        "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector
    )


def nodes(b, selector):
    """The numbers of the nodes that elements stand for or lead to."""
    return b.run(
        "return [...document.querySelectorAll(arguments[0])].map((one) => Number(one.dataset.node))",
        selector,
    )


def enter(b, selector, value, event):
    """Gives a field a value as a hand does that is done with it."""
    b.run(
        """const field = document.querySelector(arguments[0]);
           field.value = arguments[1];
           field.dispatchEvent(new Event(arguments[2]));""",
        selector,
        value,
        event,
    )


def chosen(b):
    """The number of the node that the panel shows."""
    found = re.match(r"%(\d+) ", b.run("return document.getElementById('chosen')?.innerText ?? ''"))
    return int(found.group(1)) if found else None


def node_of(op, number=0):
    return [i for i, row in enumerate(ROWS) if row["op"] == op][number]


def choose(b, i):
    """Chooses a node by its number in the search field."""
    b.click("#search")
    enter(b, "#search", "", "input")
    b.keys(f"%{i} ", "Enter")
    equal(chosen(b), i, "the node in the panel")


def complaints(b):
    """What the page logged, and what it asked of anybody but itself."""
    said = [entry["message"] for entry in b.log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    events = [json.loads(entry["message"])["message"] for entry in b.log("performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    own = b.run("return location.href.split('#')[0]")
    entries = b.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    return said + [url for url in asked + entries if url != own and not url.startswith("data:")]


# ---- It is one file, and harmless


def test_it_asks_nobody_and_complains_of_nothing(b):
    open_block(b)
    for tab in ("attention", "time", "table", "graph"):
        b.click(f"#tab-{tab}")
    b.click("#open-all")
    choose(b, node_of("softmax"))
    equal(complaints(b), [], "errors and requests")


def test_that_would_show(b):
    """The same look at a page that does ask, and does complain."""
    with open(path_of("block.html"), encoding="utf-8") as file:
        page = file.read()
    without_policy = re.sub(r"<meta http-equiv[^>]*>", "", page)
    spoiled = {
        "asks.html": without_policy.replace("<main>", '<main><img src="http://127.0.0.1:9/x.png">', 1),
        "complains.html": page.replace("\nstart();\n", "\nstart();\nnoSuchFunction();\n"),
        "unescaped.html": without_policy.replace("\\u003c", "<"),
    }
    for name, content in spoiled.items():
        assert content != page, f"{name} is not spoiled"
        with open(path_of(name), "w", encoding="utf-8") as file:
            file.write(content)
        b.open(path_of(name))
        assert complaints(b), f"nothing was seen of {name}"
    assert (
        b.run("return document.getElementById('title').textContent") == "tapehead"
    ), "unescaped data was read"


def test_names_from_the_tape_stay_text(b):
    open_block(b)
    equal(b.run("return document.getElementById('title').textContent"), "block " + HOSTILE, "the title")
    b.click("#open-all")
    b.click("#tab-attention")
    enter(b, "#view-attention select", "1", "change")
    labels = texts(b, ".row-labels span")
    equal(labels, ["the", "cat", HOSTILE, "sat", "\ufffd"], "the tokens along the edge")
    b.click("#tab-table")
    last = [i for i, row in enumerate(ROWS) if HOSTILE in row["label"]][-1]
    cell = b.run(
        "return document.querySelector(arguments[0]).closest('tr').children[2].textContent",
        f'#view-table [data-node="{last}"]',
    )
    equal(cell, ROWS[last]["label"], "a label in the table")
    equal(
        b.run("return [window.hacked === undefined, document.images.length]"),
        [True, 0],
        "what the names did",
    )


# ---- The drawing


def items(b):
    return b.run(
        "return [count('.item.node'), count('.item.scope.open'), count('.item.scope.closed')];"
        "function count(selector) { return document.querySelectorAll('#drawing ' + selector).length; }"
    )


def test_scopes_open_and_close(b):
    open_block(b)
    b.click("#open-all")
    nodes, opened, closed = items(b)
    equal((nodes, closed), (len(ROWS), 0), "nodes and closed scopes when all is open")
    b.click("#close-all")
    nodes, none, closed = items(b)
    equal(none, 0, "open scopes when all is closed")
    assert closed > 0 and nodes < len(ROWS)
    b.click("#drawing .item.scope.closed")
    equal(items(b)[1], 1, "open scopes after a click on one")
    x, y, _, _ = b.box("#drawing .item.scope.open .handle")
    b.click_at(x + 30, y + 8)
    equal(items(b), [nodes, 0, closed], "the drawing after a click on its heading")


def test_nothing_overlaps(b):
    """Boxes of one scope, whatever is open, and what is in a scope is inside its box."""
    open_block(b)
    for opening in ("#open-all", "#close-all", "#drawing .item.scope.closed"):
        b.click(opening)
        bad = b.run("""
          const boxes = [...document.querySelectorAll('#drawing .item')].map((element) => {
            const { left, right, top, bottom } =
              element.querySelector(element.dataset.scope ? '.box' : 'rect').getBoundingClientRect();
            const open = element.classList.contains('open');
            return { element, open, l: left, r: right, t: top, b: bottom };
          });
          const scopes = new Map(boxes.filter((a) => a.element.dataset.scope)
                                   .map((a) => [Number(a.element.dataset.scope), a]));
          const holds = (a, o) => {
            let scope = o.element.place.scope;
            while (scope > 0 && scopes.get(scope) !== a) scope = scopes.get(scope).element.place.scope;
            return scope > 0;
          };
          const inside = (a, o) => a.l >= o.l - 1 && a.r <= o.r + 1 && a.t >= o.t - 1 && a.b <= o.b + 1;
          const meet = (a, o) => a.l < o.r - 1 && o.l < a.r - 1 && a.t < o.b - 1 && o.t < a.b - 1;
          const wrong = (a, o) => holds(a, o) ? !inside(o, a) : holds(o, a) ? !inside(a, o) : meet(a, o);
          return boxes.flatMap((a, i) => boxes.slice(i + 1).filter((o) => wrong(a, o))
            .map((o) => [a.element.textContent, o.element.textContent]));""")
        equal(bad, [], f"boxes that overlap after {opening}")


def view(b):
    found = re.match(
        r"translate\(([-\d.]+),([-\d.]+)\) scale\(([\d.]+)\)",
        b.run("return document.getElementById('world').getAttribute('transform')"),
    )
    return [float(part) for part in found.groups()]


def test_pan_and_zoom(b):
    open_block(b)
    b.click("#fit")
    x, y, scale = fitted = view(b)
    left, top, width, height = b.box("#canvas")
    b.drag(left + 20, top + height - 20, 60, -40)
    now = view(b)
    assert (
        abs(now[0] - x - 60) < 1.5 and abs(now[1] - y + 40) < 1.5 and now[2] == scale
    ), f"dragged: {now} from {x, y}"
    b.wheel(left + width / 2, top + height / 2, -200)
    assert view(b)[2] > scale, "a wheel turned up zooms in"
    b.click("#zoom-out")
    b.click("#zoom-out")
    b.click("#zoom-out")
    assert view(b)[2] < scale, "the button zooms out"
    b.click("#fit")
    equal(view(b), fitted, "the view that fits")


def test_search(b):
    open_block(b)
    b.click("#close-all")
    b.keys("/")
    b.keys("softmax")
    softmaxes = [i for i, row in enumerate(ROWS) if row["op"] == "softmax"]
    equal(count(b, "#found [role=option]"), len(softmaxes), "nodes in the list")
    b.keys("Down", "Down", "Enter")
    equal(chosen(b), softmaxes[1], "the second node found")
    assert (
        count(b, f'#drawing [data-node="{softmaxes[1]}"].chosen') == 1
    ), "its scope was opened and it is marked"
    equal(count(b, "#drawing .item.node.found"), 1, "nodes marked in the scope that is open")
    b.click("#tab-table")
    equal(count(b, "#view-table tbody tr"), len(softmaxes), "rows that the table keeps")
    b.click("#search")
    b.keys("Escape")
    equal(count(b, "#view-table tbody tr"), min(len(ROWS), 100), "rows after the search was emptied")


# ---- A node


def statistics(b):
    return b.run(
        "return [...document.querySelectorAll('.statistics tbody tr')].map((row) => "
        "[...row.children].map((cell) => cell.textContent))"
    )


def test_a_click_shows_a_node_with_its_numbers(b):
    open_block(b)
    b.click("#open-all")
    b.click("#fit")
    for i in (node_of("projection"), node_of("softmax"), node_of("sum"), 0):
        b.click("#fit")
        b.click(f'#drawing [data-node="{i}"]')
        equal(chosen(b), i, "the node in the panel")
        row = ROWS[i]
        panel = text(b, "#panel")
        for part in (f"({', '.join(map(str, row['shape']))})", row["label"]):
            assert part in panel, f"{part} of node {i} is not in the panel"
        for name, value, gradient in statistics(b)[:5]:
            expected = [six(row["value"][name]), six(row["gradient"][name])]
            equal([float(value), float(gradient)], expected, f"{name} of node {i}")
        inputs = b.run(
            "return [...document.querySelectorAll('#panel section')].slice(0, 2).map((part) => "
            "[...part.querySelectorAll('[data-node]')].map((link) => Number(link.dataset.node)))"
        )
        readers = [j for j, other in enumerate(ROWS) if i in other["inputs"]]
        equal(
            inputs,
            [[j for j in row["inputs"] if j is not None], readers],
            f"inputs and readers of node {i}",
        )


def test_formulas_and_links(b):
    open_block(b)
    i = node_of("softmax")
    choose(b, i)
    assert "dS = P (dP - sum(dP P))" in text(b, ".formula"), "the rule of softmax"
    b.click("#panel section .links .link")
    equal(chosen(b), ROWS[i]["inputs"][0], "the node behind the first link")


def readout(b, within):
    return text(b, f"{within} .readout")


def test_maps_read_out_the_numbers(b):
    open_block(b)
    i = node_of("projection")
    choose(b, i)
    shape = ROWS[i]["shape"]
    for part, key in ((4, "values"), (5, "gradients")):
        field = f"#panel section:nth-of-type({part}) .field"
        b.run("document.querySelector(arguments[0]).focus()", field)
        b.keys("Right", "Down", "Right", "Right")
        shown = readout(b, f"#panel section:nth-of-type({part})")
        equal(
            shown, f"(0, 1, 2): {json_number(ROWS[i][key][1 * shape[2] + 2])}", f"{key} by the arrow keys"
        )
        x, y, width, height = b.box(field)
        rows, columns = shape[0] * shape[1], shape[2]
        b.hover(x + (3 + 0.5) * width / columns, y + (7 + 0.5) * height / rows)
        shown = readout(b, f"#panel section:nth-of-type({part})")
        equal(shown, f"(1, 2, 3): {json_number(ROWS[i][key][7 * columns + 3])}", f"{key} under the pointer")
    cells = b.run(
        "return [...document.querySelectorAll('#panel section:nth-of-type(4) .numbers td[title]')]"
        ".map((cell) => [cell.title, cell.textContent])"
    )
    equal([float(full) for full, _ in cells], ROWS[i]["values"], "the table of numbers")
    equal(
        [float(brief) for _, brief in cells],
        [six(x) for x in ROWS[i]["values"]],
        "the same with six digits",
    )


def json_number(x):
    """As a script prints a number: the shortest that reads back."""
    shortest = repr(x)
    return re.sub(r"e([-+])0*", r"e\1", shortest[:-2] if shortest.endswith(".0") else shortest)


# ---- Paths


def reached(start, step):
    """All nodes behind a node, by plain recursion over the numbers of the tape."""
    seen, waiting = {start}, [start]
    while waiting:
        for i in step(waiting.pop()):
            if i not in seen:
                seen.add(i)
                waiting.append(i)
    return seen


def readers_of(i):
    return [j for j, row in enumerate(ROWS) if i in row["inputs"]]


def arguments_of(i):
    return [j for j in ROWS[i]["inputs"] if j is not None]


def nodes_of_path(x, node, y):
    """From x to a port by no other port and on from there; by a node that is none, no port at all is met."""
    on = reached(node, readers_of) & reached(y, arguments_of)
    if not ROWS[node]["port"]:
        beyond_no_port = reached(node, lambda i: [j for j in readers_of(i) if not ROWS[j]["port"]])
        return {x} | (beyond_no_port & on)
    before = reached(node, lambda i: [j for j in arguments_of(i) if not ROWS[j]["port"]])
    return {x} | (before & reached(x, readers_of)) | on


def lit_nodes(b):
    return set(nodes(b, "#drawing .item.node.lit"))


def test_paths_light_up(b):
    open_block(b)
    b.click("#open-all")
    equal(lit_nodes(b), set(), "lit nodes before")
    enter(b, "#path-choice", "0", "change")
    table = BLOCK["paths"][0]
    x, y = table["node"], len(ROWS) - 1
    equal(lit_nodes(b), reached(x, readers_of) & reached(y, arguments_of), "nodes between x and the loss")
    shown = [texts(b, f".path-row .path-{part}") for part in ("name", "share", "more")]
    for name, share, more, row in zip(*shown, table["rows"], strict=True):
        equal(name, row["label"], "the name of a path")
        equal(float(share.removesuffix(" %")), float(f"{100 * row['share']:.2f}"), f"the share of {name}")
        norm, cosine = re.match(r"norm (\S+), cosine (\S+), largest", more).groups()
        equal(
            [float(norm), float(cosine)],
            [six(row["norm"]), six(row["cosine"])],
            f"norm and cosine of {name}",
        )
    for k, row in enumerate(table["rows"]):
        b.click(f'.path-row[data-row="{k}"]')
        equal(lit_nodes(b), nodes_of_path(x, row["node"], y), f"nodes of {row['label']}")
        colour = b.run(
            "return document.querySelector(arguments[0]).style.getPropertyValue('--lit')",
            f'#drawing [data-node="{row["node"]}"]',
        )
        name = ROWS[row["node"]]["label"].split("/")[-1]
        equal(
            colour,
            f"var(--path-{['query', 'key', 'value', name].index(name) + 1})",
            f"the colour of {name}",
        )
        b.click(f'.path-row[data-row="{k}"]')
    ports = {row["label"].split("/")[-1] for row in table["rows"] if ROWS[row["node"]]["port"]}
    equal(ports, {"query", "key", "value"}, "the ports of the paths")
    b.click("#contribution ~ *, #panel section .actions button")
    equal(lit_nodes(b), set(), "lit nodes after")


# ---- Attention


def cell_of_attention(b, i, j):
    x, y, width, height = b.box("#view-attention .field")
    b.hover(x + (j + 0.5) * width / 5, y + (i + 0.5) * height / 5)
    return readout(b, "#view-attention")


def test_attention_reads_out_each_head(b):
    open_block(b)
    b.click("#tab-attention")
    attention, tokens = BLOCK["attention"][0], BLOCK["attention"][0]["tokens"]
    equal(count(b, ".heads button"), 2, "heads")
    for head in (0, 1):
        b.click(f".heads button:nth-child({head + 1})")
        for i, j in ((0, 0), (3, 1), (4, 4), (1, 3)):
            at = head * 25 + 5 * i + j
            expected = f"query {i} \u201c{tokens[i]}\u201d, key {j} \u201c{tokens[j]}\u201d: weight "
            shown = cell_of_attention(b, i, j)
            assert shown.startswith(expected), f"{shown} does not begin with {expected}"
            weight, score, gradient = re.fullmatch(
                r"(\S+), (not allowed by the mask|score \S+), gradient (\S+)", shown.removeprefix(expected)
            ).groups()
            near(float(weight), attention["weights"][at], "the weight")
            near(float(gradient), attention["gradient"][at], "its gradient")
            if j > i:
                equal(score, "not allowed by the mask", f"the score of key {j} for query {i}")
            else:
                near(float(score.removeprefix("score ")), attention["scores"][at], "the score")


def near(shown, expected, what):
    """Six digits of a number that the page keeps in 32 bits."""
    assert abs(shown - expected) <= 6e-6 * abs(expected), f"{what}: shown {shown}, expected {expected}"


def test_attention_draws_what_is_chosen(b):
    open_block(b)
    b.click("#tab-attention")
    pixel = """const canvas = document.querySelector('.big-map canvas');
               return [...canvas.getContext('2d').getImageData(arguments[1], arguments[0], 1, 1).data];"""
    equal(b.run(pixel, 0, 4)[3], 0, "how opaque a cell is that the mask does not allow")
    first = b.run(pixel, 0, 0)
    assert first[2] > first[0] and first[3] == 255, "the weight 1 is blue"
    assert sum(b.run(pixel, 4, 0)[:3]) > sum(first[:3]), "a smaller weight is paler"
    names = texts(b, "#view-attention .group button")
    equal(names, ["Weights", "Scores", "Mask", "Gradient"], "what can be drawn")
    for k, name in enumerate(names):
        b.click(f"#view-attention .group button:nth-child({k + 1})")
        assert name in text(b, ".big-map .note"), f"{name} is not what is drawn"
        cells = texts(b, ".big-map .numbers tbody td")
        equal(len(cells), 25, "numbers in the table")
        if name == "Mask":
            equal(
                [float(x) for x in cells], [float(j <= i) for i in range(5) for j in range(5)], "the mask"
            )


# ---- Time, table


def test_time_by_node(b):
    open_block(b)
    b.click("#tab-time")
    order = sorted(range(len(ROWS)), key=lambda i: (-six(ROWS[i]["forward"]) - six(ROWS[i]["backward"]), i))
    shown = nodes(b, ".times tbody [data-node]")
    equal(shown, order[:100], "nodes by time")
    value, unit = b.run("return document.querySelector('.times tbody td').textContent").split(" ")
    seconds = float(value) * {"ns": 1e-9, "\u00b5s": 1e-6, "ms": 1e-3, "s": 1}[unit]
    expected = ROWS[order[0]]["forward"]
    assert (
        abs(seconds - expected) <= 0.006 * expected
    ), f"the time of the slowest: {value} {unit}, expected {expected} s"
    b.click("#view-time .group button:nth-child(3)")
    assert count(b, ".times tbody tr") == len({row["op"] for row in ROWS}), "a line an op"


def test_table_sorts_and_leads_to_nodes(b):
    open_block(b)
    b.click("#tab-table")
    b.click('[data-key="gradient"]')
    shown = nodes(b, "#view-table tbody td:first-child [data-node]")
    norms = [six(ROWS[i]["gradient"]["norm"]) if "gradient" in ROWS[i] else -1 for i in shown]
    equal(norms, sorted(norms, reverse=True), "gradient norms, the largest first")
    equal(
        b.run(
            "return document.querySelector('[data-key=gradient]').closest('th').getAttribute('aria-sort')"
        ),
        "descending",
        "what the heading says",
    )
    b.click("#view-table tbody tr .link")
    equal(chosen(b), shown[0], "the node of the first line")


# ---- Keys, and what is read aloud


def focused(b):
    return b.run("""const element = document.activeElement;
           return element.getAttribute('aria-label') || element.textContent || element.id;""")


def focus_height(b):
    return b.run("return document.activeElement.getBoundingClientRect().top")


def in_drawing(b):
    return b.run("return document.activeElement.matches('#drawing .item')")


def test_the_keyboard_walks_the_drawing(b):
    open_block(b)
    b.click("#close-all")
    b.click("#fit")
    for _ in range(3):
        if not in_drawing(b):
            b.keys("Tab")
    before = focused(b)
    assert in_drawing(b), f"tab leads into the drawing, not to {before}"
    outline = b.run(
        "return getComputedStyle(document.activeElement.querySelector('rect:not(.behind)')).strokeWidth"
    )
    assert float(outline.removesuffix("px")) > 3, "the focus can be seen"
    b.run("document.querySelector('#drawing [aria-label^=\"layer 1\"]').focus()")
    heights = [focus_height(b)]
    for key in ("Down", "Down", "Up"):
        b.keys(key)
        heights.append(focus_height(b))
    assert heights[0] < heights[1] < heights[2] > heights[3], f"arrows walk down and up: {heights}"
    b.run("document.querySelector('#drawing [aria-label^=\"layer 1\"]').focus()")
    b.keys("Enter")
    equal(
        b.run("return document.activeElement.getAttribute('aria-expanded')"), "true", "enter opens a scope"
    )
    assert "is open" in text(b, "#live"), "that is said aloud"
    b.keys("Down")
    for _ in range(5):
        if not b.run("return document.activeElement.matches('.item.node')"):
            b.keys("Down")
    b.keys("Enter")
    inner = chosen(b)
    assert inner is not None, "enter chooses a node"
    assert f"Chosen: %{inner} " in text(b, "#live"), "that is said aloud"
    b.keys("Escape")
    equal(chosen(b), None, "escape lets go of the node")
    b.keys("Escape")
    equal(items(b)[1], 0, "escape closes the scope around")
    scale = view(b)[2]
    b.keys("+")
    assert view(b)[2] > scale, "plus zooms in"
    b.keys("Tab")
    assert not in_drawing(b), "tab leads out again"
    b.back_tab()
    assert in_drawing(b), "and shift and tab back in"


def test_tabs_by_arrows(b):
    open_block(b)
    b.run("document.getElementById('tab-graph').focus()")
    seen = []
    for _ in range(4):
        b.keys("Right")
        seen.append(b.run("""return [...document.querySelectorAll('[role=tabpanel]')]
                  .filter((one) => !one.hidden).map((one) => one.id);"""))
    equal(
        seen, [["view-attention"], ["view-time"], ["view-table"], ["view-graph"]], "the view that is open"
    )


def test_everything_has_a_name(b):
    open_block(b)
    b.click("#open-all")
    for tab in ("graph", "attention", "time", "table"):
        b.click(f"#tab-{tab}")
        nameless = b.run(
            """return [...document.querySelectorAll('button, input, select, [tabindex="0"], [role=button]')]
          .filter((one) => one.getClientRects().length &&
                  !(one.textContent.trim() || one.getAttribute('aria-label') || one.labels?.length))
          .map((one) => one.outerHTML.slice(0, 100))"""
        )
        equal(nameless, [], f"what has no name in {tab}")
    marks = b.run(
        "return ['header', 'main', 'aside[aria-label]', '[aria-live]', '[role=search]', '[role=tablist]']"
        ".filter((mark) => !document.querySelector(mark))"
    )
    equal(marks, [], "landmarks that are not there")
    b.run("document.querySelector('.skip').focus()")
    b.keys("Enter")
    assert not b.run(
        "return document.getElementById('view-table').hidden"
    ), "the first link leads to the table"


# ---- Light, dark, narrow, long


def ground(b):
    colour = b.run("return getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3])


def test_light_and_dark(b):
    open_block(b, scheme="light")
    assert ground(b) > 600, "light where the system is light"
    b.click("#theme")
    assert ground(b) < 150, "dark by the switch"
    equal(
        b.run("return document.getElementById('theme').getAttribute('aria-pressed')"),
        "true",
        "what the switch says",
    )
    open_block(b, scheme="dark")
    assert ground(b) < 150, "dark where the system is dark"
    b.click("#tab-attention")
    pixel = """const canvas = document.querySelector('.big-map canvas');
               return [...canvas.getContext('2d').getImageData(0, 0, 1, 1).data];"""
    before = b.run(pixel)
    b.click("#theme")
    assert ground(b) > 600, "light by the switch"
    assert b.run(pixel) != before, "maps follow the switch"


def test_a_narrow_screen(b):
    open_block(b, 390, 844)
    choose(b, node_of("softmax"))
    for tab in ("graph", "attention", "time", "table"):
        b.click(f"#tab-{tab}")
        wide = b.run("return document.documentElement.scrollWidth")
        assert wide <= 390, f"{tab} is {wide} pixels wide"
    below = b.run(
        "return document.getElementById('panel').getBoundingClientRect().top - "
        "document.querySelector('.views').getBoundingClientRect().bottom"
    )
    assert below >= -1, "the panel is below the views"


def test_a_long_tape_opens_closed_and_stays_usable(b):
    b.screen(1280, 800)
    b.open(path_of("long.html"))
    rows = LONG["rows"]
    assert len(rows) >= 5000, f"only {len(rows)} nodes"
    assert 0 < count(b, "#drawing .item") < 100, "few boxes, since all scopes are closed"
    b.click("#search")
    b.keys("%4321 ", "Enter")
    equal(chosen(b), 4321, "a node that was searched for")
    assert count(b, '#drawing [data-node="4321"].chosen') == 1, "it is drawn, in open scopes"
    assert count(b, "#drawing .item") < 400, "and what is around it stays closed"
    equal(float(statistics(b)[4][1]), six(rows[4321]["value"]["norm"]), "its norm")
    b.click("#search")
    b.keys("Escape")
    b.click("#tab-table")
    b.click("#view-table .bar button:last-child")
    assert "Nodes 101 to 200" in text(b, "#view-table .bar"), "the table turns its pages"
    equal(complaints(b), [], "errors and requests")


def main():
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    failures = 0
    browser = Browser(driver, chromium)
    try:
        for name, test in tests:
            try:
                test(browser)
                print(f"{name}: as it should be")
            except Exception as error:
                failures += 1
                line = traceback.extract_tb(error.__traceback__)[1].lineno
                print(f"{name}: FAILED at line {line}: {error}")
    finally:
        browser.quit()
    return 1 if failures else 0


sys.exit(main())
