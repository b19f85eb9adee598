package profilefmt_test

import (
	"strings"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// listen records everything that a page must not do: exceptions, dialogs, output to the console, and requests.
func (p *tab) listen() {
	note := func(problem string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.problems = append(p.problems, problem)
	}
	err := chromedp.Listen(p.ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			text := e.ExceptionDetails.Text
			if e.ExceptionDetails.Exception != nil {
				text += " " + e.ExceptionDetails.Exception.Description
			}
			note("exception: " + text)
		case *runtime.EventConsoleAPICalled:
			note("the page writes to the console: " + string(e.Type))
		case *page.EventJavascriptDialogOpening:
			note("dialog: " + e.Message)
		case *network.EventRequestWillBeSent:
			address := e.Request.URL
			if !strings.HasPrefix(address, "file://"+p.file) && address != "about:blank" {
				note("the page loads " + address)
			}
		}
	})
	if err != nil {
		p.Fatal(err)
	}
	if _, err := chromedp.Call(p.ctx, network.Enable, network.EnableParams{}); err != nil {
		p.Fatal(err)
	}
}
