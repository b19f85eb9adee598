package page

import (
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// value returns the text that an expression gives at once.
func (x tab) value(expression string) string {
	x.t.Helper()
	text, err := chromedp.Run(x.ctx, chromedp.Evaluate[string]("String("+expression+")"))
	if err != nil {
		x.t.Fatalf("%s: %v", expression, err)
	}
	return text
}

// choices chooses in the lists of the page.
func choices(t *testing.T, address string) {
	t.Helper()
	x := openTab(t)
	x.enter(address, operatorToken)
	x.wait(`last?.load && names`)
	x.do(`location.hash = "view=who&by=query"`)
	x.wait(`document.querySelector("#main select")?.value === "query"`)
	// After a choice, the list keeps the focus.
	const choose = `document.activeElement.dispatchEvent(new Event("change"))`
	x.do(`document.querySelector("#main select").focus(), document.activeElement.value = "user", ` + choose)
	x.wait(`document.querySelector("#main thead th:last-child")?.textContent === "user"`)
	x.wait(`document.activeElement.tagName === "SELECT" && document.activeElement.value === "user"`)
	x.do(`window.list = document.activeElement`)
	x.wait(`!list.isConnected && document.activeElement.tagName === "SELECT"`)
	// A list that is open stays.
	x.run(chromedp.Click("#main select"))
	x.wait(`document.activeElement.matches("select:open")`)
	x.do(`window.list = document.activeElement, window.before = last.time`)
	x.wait(`last.time !== before && list.isConnected`)
	x.run(chromedp.KeyEvent(kb.Escape))
	x.wait(`!list.isConnected && document.activeElement.tagName === "SELECT"`)
	x.do(`location.hash = "view=flame"`)
	x.wait(`flameView.side?.isConnected`)
	x.do(`window.drawn = "", window.update = flameView.update, flameView.update = (f) => { drawn = f.side; return update.call(flameView, f); }`)
	x.do(`flameView.side.focus(), flameView.side.value = "on-cpu", ` + choose)
	x.wait(`drawn === "on-cpu" && document.activeElement === flameView.side`)
}

// otherLevels: the panel of a process never has the phrase and the levels of another one.
func otherLevels(t *testing.T, address string) {
	t.Helper()
	x := openTab(t)
	x.enter(address, operatorToken)
	x.do(`location.hash = "view=blocking"`)
	x.wait(`names && document.querySelectorAll("#main tr[data-key]").length === 2`)
	x.press(" ") // nothing draws again
	x.wait(`stopped`)
	for _, then := range []string{
		`document.querySelectorAll("#main tr[data-key]")[1].select()`, // another row
		`chosenNode = "0", draw()`,                                    // the process waits no more
	} {
		x.do(`levels = { key: levels.key, at: Date.now(), phrase: "of the other", lines: [] }, drawNode(last.blocking)`)
		const panel = `document.getElementById("node").innerText.includes("of the other")`
		if before, after := x.value(panel), x.value(`(`+then+`, `+panel+`)`); before != "true" || after != "false" {
			t.Errorf("%s: the phrase of the other process is in the panel: before %s, after %s", then, before, after)
		}
	}
}

// presses: new data between the press and the release of a button loses no click, and takes no focus from a button of the header.
func presses(t *testing.T, address string) {
	t.Helper()
	x := openTab(t)
	x.enter(address, operatorToken)
	x.wait(`last?.sessions && document.querySelector("#main tr[data-key]") !== null`)
	x.press(" ")
	x.wait(`stopped`)
	at := func(element string) (down, up chromedp.Action[chromedp.Void]) {
		x.do(`window.row = document.querySelector("#main tr[data-key]"), window.place = ` + element + `, place.scrollIntoView({ block: "center" })`)
		place, err := chromedp.Run(x.ctx, chromedp.Evaluate[[]float64](`(() => { const r = place.getBoundingClientRect(); return [r.left + 20, r.top + r.height / 2]; })()`))
		if err != nil {
			t.Fatal(err)
		}
		left := []chromedp.MouseOption{chromedp.ButtonLeft, chromedp.ClickCount(1)}
		return chromedp.MouseEvent(input.DispatchMouseEventTypeMousePressed, place[0], place[1], left...), chromedp.MouseEvent(input.DispatchMouseEventTypeMouseReleased, place[0], place[1], left...)
	}
	down, up := at(`document.querySelector("#main h2")`)
	x.run(down)
	x.do(`draw()`)
	x.run(up)
	x.wait(`!row.isConnected && document.querySelector("#main tr[data-key]") !== null`)
	down, up = at(`[...document.querySelectorAll("#main tr[data-key]")].at(-1)`) // a session
	x.run(down)
	x.do(`draw()`)
	x.run(up)
	x.wait(`view() === "session"`)
	x.press(" ")
	x.do(`location.hash = "view=who&by=type&filter=type%3Dclient+backend"`)
	x.wait(`!stopped && last?.who && document.querySelector("#filters button") !== null`)
	for _, button := range []struct{ of, text, then string }{
		{"#filters", "type=client backend ×", `state().getAll("filter").length === 0`},
		{"#views", "Load", `view() === "load" && document.activeElement.textContent === "Load"`},
	} {
		focused := `document.activeElement.textContent === "` + button.text + `"`
		x.do(`[...document.querySelectorAll("` + button.of + ` button")].find((b) => b.textContent === "` + button.text + `").focus(), window.before = last.time`)
		x.wait(`last.time !== before`)
		if x.value(focused) != "true" {
			t.Errorf("%q has lost the focus", button.text)
			continue
		}
		x.run(chromedp.KeyEvent(kb.Enter))
		x.wait(button.then)
	}
}

// sameFilter: a row that is chosen again adds no second filter.
func sameFilter(t *testing.T, address string) {
	t.Helper()
	x := openTab(t)
	x.enter(address, operatorToken)
	x.do(`location.hash = "view=who&by=type"`)
	const row = `document.querySelector('#main tr[data-key="client backend"]')`
	x.wait(`names && ` + row + ` !== null`)
	if got := x.value(`(` + row + `.click(), ` + row + `.click(), state().getAll("filter"))`); got != "type=client backend" {
		t.Errorf("filters %s", got)
	}
}
