package page

import (
	"testing"

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
