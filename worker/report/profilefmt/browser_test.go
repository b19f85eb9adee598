package profilefmt_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"pg_stat_backtrace/worker/report/profilefmt"
)

// screenshots is the variable that names a folder for pictures of the tested pages.
const screenshots = "PGSB_TEST_SCREENSHOTS"

// browser is the Chromium of all tests of this package.
var browser struct {
	once  sync.Once
	ctx   context.Context
	close func()
	why   string // why there is none
}

func TestMain(m *testing.M) {
	status := m.Run()
	if browser.close != nil {
		browser.close()
	}
	os.Exit(status)
}

// startBrowser starts Chromium, or skips the test with the reason.
func startBrowser(t *testing.T) context.Context {
	t.Helper()
	if testing.Short() {
		t.Skip("the browser needs a minute: not with -short")
	}
	browser.once.Do(func() {
		browser.why = "no chromium in PATH"
		for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
			program, err := exec.LookPath(name)
			if err != nil {
				continue
			}
			err = launch(program)
			if err != nil { // root and some containers have no sandbox; the tests open only their own files
				err = launch(program, chromedp.NoSandbox)
			}
			browser.why = ""
			if err != nil {
				browser.why = program + " does not start: " + err.Error()
			}
			return
		}
	})
	if browser.why != "" {
		t.Skip(browser.why)
	}
	return browser.ctx
}

// launch starts the browser.
func launch(program string, more ...chromedp.ExecAllocatorOption) error {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program),
		chromedp.DisableGPU, chromedp.WSURLReadTimeout(2*time.Minute)) // an emulated GPU computes a lot
	alloc, cancelAlloc := chromedp.NewExecAllocator(context.Background(), append(options, more...)...)
	ctx, cancel := chromedp.NewContext(alloc)
	if err := chromedp.Do(ctx); err != nil {
		cancel()
		cancelAlloc()
		return err
	}
	browser.ctx = ctx //nolint:fatcontext // assigned once
	browser.close = func() { cancel(); cancelAlloc() }
	return nil
}

// A tab is a page of a profile in the browser.
type tab struct {
	*testing.T

	ctx  context.Context
	file string

	mu       sync.Mutex
	problems []string // exceptions, dialogs and requests
}

// open writes the profile as a page, and opens it at a part of its address.
func open(t *testing.T, b *builder, o profilefmt.Options, hash string) *tab {
	t.Helper()
	root := startBrowser(t)
	o.Format = profilefmt.HTML
	file := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(file, []byte(b.write(t, o)), 0o600); err != nil {
		t.Fatal(err)
	}
	return openFile(t, root, file, hash)
}

func openFile(t *testing.T, root context.Context, file, hash string) *tab { //nolint:revive // t comes first in tests
	t.Helper()
	ctx, cancel := chromedp.NewContext(root)
	ctx, cancelTime := context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(func() { cancelTime(); cancel() })
	p := &tab{T: t, ctx: ctx, file: file}
	p.listen()
	p.run(chromedp.EmulateViewport(1280, 800))
	p.visit(hash)
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, problem := range p.problems {
			t.Error(problem)
		}
	})
	return p
}

// visit loads the page anew.
func (p *tab) visit(hash string) {
	p.Helper()
	address := url.URL{Scheme: "file", Path: p.file, Fragment: ""}
	p.run(chromedp.Navigate("about:blank"), chromedp.Navigate(address.String()+"#"+hash),
		chromedp.WaitReady("body[data-ready]"))
}

func (p *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	p.Helper()
	if err := chromedp.Do(p.ctx, actions...); err != nil {
		p.Fatal(err)
	}
}

// js evaluates an expression.
func js[T any](p *tab, expression string) T {
	p.Helper()
	v, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.Fatalf("%s: %v", expression, err)
	}
	return v
}

// wait waits until an expression is true.
func (p *tab) wait(expression string) {
	p.Helper()
	poll := chromedp.Poll[bool](expression, chromedp.WithPollingTimeout(time.Minute))
	if _, err := chromedp.Run(p.ctx, poll); err != nil {
		p.Fatalf("waiting for %s: %v", expression, err)
	}
}

// picture keeps a picture of the page, if the environment asks for it.
func (p *tab) picture(name string, width, height int64, dark bool) {
	p.Helper()
	dir := os.Getenv(screenshots)
	if dir == "" {
		return
	}
	p.run(chromedp.EmulateViewport(width, height))
	js[bool](p, fmt.Sprintf(`(document.documentElement.dataset.theme === "dark") !== %t &&
		document.getElementById("theme").click(), true`, dark))
	js[bool](p, `new Promise((done) =>
		requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50, true))))`)
	p.wait(`!graph.motion`)
	png, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		p.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		p.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, strings.ReplaceAll(name, "/", "_")+".png"), png, 0o644); err != nil {
		p.Fatal(err)
	}
}
