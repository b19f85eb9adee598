package page

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

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
