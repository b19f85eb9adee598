package profilefmt_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/report/profilefmt"
)

// server is a profile of a small server: 10 s of database time, 2 s of background processes, 20 s of idle time. Values
// are samples, cpu, offcpu and wall.
func server() *builder {
	b := newBuilder("samples/count", "cpu/nanoseconds", "offcpu/nanoseconds", "wall/nanoseconds")
	b.DurationNanos = 16e9
	const ms = 1_000_000
	add := func(cpu, off int64, stack string, labels ...string) {
		b.add(stack, []int64{(cpu + off) / 10, cpu * ms, off * ms, (cpu + off) * ms}, labels...)
	}
	session := func(pid, query string, more ...string) []string {
		return append([]string{
			"backend_type=client backend", "database=app", "user=alice", "pid=" + pid, "query_id=" + query, "state=active",
		}, more...)
	}
	const (
		start = "/bin/postgres!main;/bin/postgres!PostgresMain;"
		run   = start + "/bin/postgres!exec_simple_query;/bin/postgres!ExecutorRun;"
	)
	add(4000, 0, run+"/bin/postgres!ExecSort;/bin/postgres!qsort_tuple;/bin/postgres!comparetup", session("11", "4201")...)
	add(1000, 0, run+"/bin/postgres!ExecSort;/bin/postgres!qsort_tuple", session("11", "4201")...)
	add(500, 0, run+"/bin/postgres!ExecSort;/bin/postgres!qsort_tuple;/bin/postgres!qsort_tuple", session("11", "4201")...)
	add(500, 0, run+"plpgsql:take_stock(text);/lib/plpgsql.so!exec_stmt", session("12", "-77")...)
	add(0, 3000, run+"/bin/postgres!LockAcquire;/lib/libc.so.6!epoll_wait",
		session("12", "-77", "wait_event_type=Lock", "wait_event=transactionid")...)
	add(0, 1000, run+"/bin/postgres!postgres+0x1234;/lib/libc.so.6!pread64",
		session("13", "-77", "wait_event_type=IO", "wait_event=DataFileRead")...)
	add(0, 15000, start+"/bin/postgres!ReadCommand;/lib/libc.so.6!epoll_wait", "backend_type=client backend",
		"database=app", "user=bob", "pid=14", "state=idle", "wait_event_type=Client", "wait_event=ClientRead")
	add(0, 5000, "/bin/postgres!main;/bin/postgres!CheckpointerMain;/lib/libc.so.6!epoll_wait",
		"backend_type=checkpointer", "pid=5", "wait_event_type=Activity", "wait_event=CheckpointerMain")
	add(0, 2000, "/bin/postgres!main;/bin/postgres!WalWriterMain;/lib/libc.so.6!fdatasync", "backend_type=walwriter",
		"pid=6", "wait_event_type=IO", "wait_event=WALSync")
	return b
}

// text returns the text of an element.
func (p *tab) text(selector string) string {
	p.Helper()
	text := js[string](p, fmt.Sprintf(`document.querySelector(%q).textContent`, selector))
	return strings.ReplaceAll(text, "\u00a0", " ")
}

// rows returns the first cells and the values of a table of the page.
func (p *tab) rows(table string) map[string]float64 {
	p.Helper()
	return js[map[string]float64](p, fmt.Sprintf(`Object.fromEntries([...document.querySelectorAll(%q)].map((row) =>
		[row.cells[0].textContent, Number(row.querySelector("[data-value]").dataset.value)]))`,
		"#table-"+table+" tbody:not(.apart) tr"))
}

func sum(rows map[string]float64) (total float64) {
	for _, v := range rows {
		total += v
	}
	return total
}

// total adds up one value of all samples.
func (b *builder) total(index int) (total float64) {
	for _, s := range b.Sample {
		total += float64(s.Value[index])
	}
	return total
}

// press sends keys to the element that has the focus.
func (p *tab) press(keys string) {
	p.Helper()
	p.run(chromedp.KeyEvent(keys))
}

// click clicks the frame with a name in the graph.
func (p *tab) click(name string, modifiers ...chromedp.Modifier) {
	p.Helper()
	at := js[[]float64](p, fmt.Sprintf(`(async () => {
		const where = () => {
			const box = graph.canvas.getBoundingClientRect();
			for (const [depth, row] of graph.rows.entries()) {
				for (const r of row) {
					if (r.node < 0 || nodeName(r.node) !== %q) continue;
					const x = box.left + r.x + r.w / 2, y = box.top + graph.top(depth) - graph.box.scrollTop + rowHeight / 2;
					return [x, y];
				}
			}
			return [];
		};
		// A new page may still move: the second of two equal places counts.
		for (let last = "";;) {
			const now = where();
			if (String(now) === last) return now;
			last = String(now);
			await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
		}
	})()`, name))
	if len(at) != 2 {
		p.Fatalf("the graph has no frame %s", name)
	}
	p.run(chromedp.MouseClickXY(at[0], at[1], chromedp.ButtonModifiers(modifiers...)))
}

// TestTablesAddUp: with all parts of time in sight, the rows of each table add up to the profile's total of each type. By
// default each table has one of the types, and each type one table.
func TestTablesAddUp(t *testing.T) {
	b := server()
	b.add("", []int64{1, 5, 5, 10}) // without a stack, without labels
	p := open(t, b, profilefmt.Options{Title: "Sums"}, "")
	selected := figure.Share(t, 4)
	for i, unit := range b.SampleType {
		for j, table := range []string{"functions", "queries", "waits", "labels"} {
			if !selected(i + j) {
				continue
			}
			p.visit("time=database.background.idle&type=" + unit.Type + "&tab=" + table)
			if got, want := sum(p.rows(table)), b.total(i); got != want {
				t.Errorf("%s: the rows of table %s add up to %v, the profile to %v", unit.Type, table, got, want)
			}
			if got := p.text("#table-" + table + " tfoot .share"); got != "100.0 %" {
				t.Errorf("%s: the sum of table %s is %s", unit.Type, table, got)
			}
		}
	}
}

// TestWaitsWithoutBackendType: without the type of a process, the page does not know whether its time is database time.
func TestWaitsWithoutBackendType(t *testing.T) {
	b := newBuilder("waits/count", "wait/nanoseconds")
	b.add("/bin/postgres!WalWriterMain", []int64{1, 2e9}, "pid=6", "wait_event_type=IO", "wait_event=WALSync")
	p := open(t, b, profilefmt.Options{Title: "Waits"}, "type=wait")
	if got := p.text("#parts"); got != "" {
		t.Errorf("parts of time: %q", got)
	}
}

// TestDatabaseTime: percentages are of database time, and idle time is shown separately.
func TestDatabaseTime(t *testing.T) {
	p := open(t, server(), profilefmt.Options{Title: "Profile of /srv/15/main", Subtitle: "4 backends"}, "tab=waits")
	if got := p.text("#parts"); got != "database time 10 s (31.3 %)background processes 2 s (6.3 %)idle 20 s (62.5 %)" {
		t.Errorf("parts of time: %q", got)
	}
	want := map[string]float64{"no wait event": 6e9, "Lock: transactionid": 3e9, "IO: DataFileRead": 1e9}
	if got := p.rows("waits"); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("waits %v, want %v", got, want)
	}
	if got := p.text("#table-waits tbody:not(.apart) .share"); got != "60.0 %" {
		t.Errorf("the first wait has %s", got)
	}
	if got := p.text("#table-waits .apart"); got != "Apart, not counted aboveClient: ClientRead (idle)15 s–"+
		"Activity: CheckpointerMain (idle)5 s–IO: WALSync (background processes)2 s–" {
		t.Errorf("apart: %q", got)
	}
	p.picture("waits", 1280, 800, false)
	if got := p.text("#detail"); !strings.HasPrefix(got,
		"all: 10 s, 100.0 % of database time, on average 0.63 active sessions · ") {
		t.Errorf("detail: %q", got)
	}
	p.run(chromedp.Click("#parts label:nth-child(3) input"))
	if got := sum(p.rows("waits")); got != 30e9 {
		t.Errorf("with idle time: %v ns", got)
	}
	p.visit("tab=queries&colour=wait")
	queries := map[string]float64{"4201": 5.5e9, "-77": 4.5e9}
	if got := p.rows("queries"); fmt.Sprint(got) != fmt.Sprint(queries) {
		t.Errorf("queries %v, want %v", got, queries)
	}
	p.picture("queries-dark", 1920, 1080, true)
}

// TestRecursionCountsOnce: a function that calls itself counts once in its total.
func TestRecursionCountsOnce(t *testing.T) {
	p := open(t, server(), profilefmt.Options{}, "")
	got := js[[]float64](p, `[...document.querySelectorAll("#table-functions tbody tr")]
		.filter((row) => row.cells[0].textContent === "qsort_tuple")
		.flatMap((row) => [...row.querySelectorAll("[data-value]")].map((cell) => Number(cell.dataset.value)))`)
	if fmt.Sprint(got) != fmt.Sprint([]float64{1.5e9, 5.5e9}) {
		t.Errorf("self and total of qsort_tuple: %v", got)
	}
}

func TestSearch(t *testing.T) {
	p := open(t, server(), profilefmt.Options{}, "")
	p.run(chromedp.Focus("#search"))
	p.press("^(qsort|Lock)")
	if got := p.text("#matches"); got != "85.0 % match, 8.50 s" {
		t.Errorf("matches: %q", got)
	}
	if got := p.text("#table-functions caption"); !strings.HasPrefix(got, "2 of ") {
		t.Errorf("caption: %q", got)
	}
	if got := js[string](p, `location.hash`); got != "#search=%5E%28qsort%7CLock%29" {
		t.Errorf("address %q", got)
	}
	p.picture("search", 1280, 800, false)
	p.press("[")
	if got := js[string](p, `document.getElementById("search").getAttribute("aria-invalid") +
		document.getElementById("matches").textContent`); !strings.HasPrefix(got, "trueInvalid regular expression") {
		t.Errorf("a wrong expression gives %q", got)
	}
}

func TestZoomAndFocus(t *testing.T) {
	p := open(t, server(), profilefmt.Options{}, "")
	p.click("ExecSort")
	if got := p.text("#chips"); got != "Zoom: ExecSort ✕" {
		t.Errorf("after a click: %q", got)
	}
	if got := p.text("#detail"); !strings.HasPrefix(got, "ExecSort 5.50 s, 55.0 % of database time, self 0") {
		t.Errorf("detail: %q", got)
	}
	width := js[float64](p, `graph.rows[graph.tree.depth[graph.zoom]][0].w / graph.width`)
	if width != 1 {
		t.Errorf("the frame has %v of the width", width)
	}
	p.picture("zoom", 1280, 800, false)
	hash := js[string](p, `location.hash`)
	p.run(chromedp.NavigateBack())
	p.wait(`graph.zoom === 0`)
	p.visit(strings.TrimPrefix(hash, "#"))
	if got := p.text("#chips"); got != "Zoom: ExecSort ✕" {
		t.Errorf("the address does not lead back: %q", got)
	}
	p.visit("")
	p.click("epoll_wait", chromedp.ModifierShift)
	if got := js[string](p, `nodeName(0)`); strings.ReplaceAll(got, "\u00a0", " ") !=
		"epoll_wait: 3 s, 30.0 % of database time" {
		t.Errorf("with a focus: %q", got)
	}
	if got := sum(p.rows("functions")); got != 3e9 {
		t.Errorf("with a focus, functions add up to %v", got)
	}
	p.run(chromedp.Click("#invert"))
	names := js[[]string](p, `graph.rows.map((row) => nodeName(row[0].node))`)
	if got := strings.Join(names[1:4], " "); got != "epoll_wait LockAcquire ExecutorRun" {
		t.Errorf("callers: %s", got)
	}
	p.picture("callers", 1280, 800, true)
}

// TestFilter: a filter changes the graph, every table and the parts of time.
func TestFilter(t *testing.T) {
	p := open(t, server(), profilefmt.Options{}, "")
	const menu = "#filters details:nth-child(4)"
	if got := p.text(menu + " summary"); got != "query_id " {
		t.Fatalf("the fourth filter is %q", got)
	}
	p.run(chromedp.Click(menu + " summary"))
	p.wait(`document.querySelectorAll("` + menu + ` input").length === 2`)
	if got := p.text(menu + " label"); got != "42015.50 s 55.0 %" {
		t.Errorf("the first value is %q", got)
	}
	p.picture("filter", 1280, 800, false)
	p.run(chromedp.Click(menu + " label:nth-child(2) input"))
	if got := p.text(menu + " summary"); got != "query_id -77" {
		t.Errorf("the filter says %q", got)
	}
	if got := js[float64](p, `graph.tree.total[0]`); got != 4.5e9 {
		t.Errorf("the graph shows %v ns", got)
	}
	if got := sum(p.rows("functions")); got != 4.5e9 {
		t.Errorf("functions add up to %v ns", got)
	}
	if got := js[string](p, `location.hash`); got != "#is.query_id=-77" {
		t.Errorf("address %q", got)
	}
	p.press(kb.Escape)
	p.wait(`!document.querySelector("details[open]")`)
	p.visit("is.query_id=-77&is.query_id=4201&is.user=alice&is.database=nowhere")
	if got := js[float64](p, `graph.tree.total[0]`); got != 0 {
		t.Errorf("a value that the profile lacks leaves %v ns", got)
	}
	if got := p.text("#filters"); strings.Count(got, "(not in this profile)") != 1 {
		t.Errorf("the filters say %q", got)
	}
	p.run(chromedp.Click("#tab-labels"))
	const want = "#tab=labels&is.query_id=-77&is.query_id=4201&is.user=alice&is.database=nowhere"
	if got := js[string](p, `location.hash`); got != want {
		t.Errorf("address %q after another table, want %q", got, want)
	}
}

// TestPartsOfAddressThatProfileLacks: the page reports a filter by a label that the profile lacks. The address keeps such a filter, and
// a type, a group and a label, until they are removed or replaced.
func TestPartsOfAddressThatProfileLacks(t *testing.T) {
	const address = "type=alloc_space&group=application&label=application&is.application=billing&is.application=web"
	p := open(t, server(), profilefmt.Options{}, address)
	if got := p.text("#chips"); got != "application = billing: not in this profile ✕application = web: not in this profile ✕" {
		t.Errorf("the page says %q", got)
	}
	hash := func(what, want string) {
		t.Helper()
		if got := js[string](p, `location.hash`); got != want {
			t.Errorf("%s: address %q, want %q", what, got, want)
		}
	}
	p.run(chromedp.Click("#tab-labels"))
	hash("after another table", "#tab=labels&"+address)
	p.run(chromedp.Click("#chips button:nth-child(2)"))
	hash("after a filter was removed", "#tab=labels&"+strings.TrimSuffix(address, "&is.application=web"))
	js[bool](p, `$("group").dispatchEvent(new Event("change"))`)
	hash("after a group was chosen", "#tab=labels&type=alloc_space&label=application&is.application=billing")
}

// TestWaitFilter: a click on a wait keeps only this wait, although the event of another type has the same name.
func TestWaitFilter(t *testing.T) {
	b := newBuilder("wall/nanoseconds")
	const lock, io, replica = "LWLock: WALWrite", "IO: WALWrite", "LWLock: SyncRep"
	for i, wait := range []string{lock, io, replica} {
		kind, event, _ := strings.Cut(wait, ": ")
		b.add("main", []int64{int64(i + 1)}, "wait_event_type="+kind, "wait_event="+event)
	}
	b.add("main", []int64{4})
	p := open(t, b, profilefmt.Options{}, "tab=waits")
	const clickRow = `[...document.querySelectorAll("#table-waits tbody button")]
		.find((e) => e.textContent === %q).click()`
	clicked := func(name string) string {
		js[any](p, fmt.Sprintf(clickRow+" || true", name))
		lit := js[[]string](p, `[...document.querySelectorAll("#table-waits tr.on")].map((e) => e.cells[0].textContent)`)
		return fmt.Sprintf("%v %v %s", p.rows("waits"), lit, js[string](p, `location.hash`))
	}
	all := fmt.Sprintf("map[%s:2 %s:3 %s:1 no wait event:4] [] #tab=waits", io, replica, lock)
	for _, c := range []struct{ name, want string }{
		{lock, "map[" + lock + ":1] [" + lock + "] #tab=waits&is.wait_event_type=LWLock&is.wait_event=WALWrite"},
		{lock, all},
		{"no wait event", "map[no wait event:4] [no wait event] #tab=waits&is.wait_event_type=&is.wait_event="},
		{"no wait event", all},
	} {
		if got := clicked(c.name); got != c.want {
			t.Errorf("after a click on %s:\n%s\nwant:\n%s", c.name, got, c.want)
		}
	}
	p.visit("tab=waits&is.wait_event=WALWrite")
	if got := js[int](p, `document.querySelectorAll("#table-waits tr.on").length`); got != 0 {
		t.Errorf("with a filter of the event only, %d rows are marked", got)
	}
}

// TestKeyboard: everything works without a mouse, and a screen reader gets the selected frame.
func TestKeyboard(t *testing.T) {
	p := open(t, server(), profilefmt.Options{}, "view=icicle")
	for range 60 {
		p.press(kb.Tab)
		if js[bool](p, `document.activeElement.id === "box"`) {
			break
		}
	}
	if !js[bool](p, `document.activeElement.id === "box" && document.activeElement.matches(":focus-visible") &&
		getComputedStyle(document.activeElement).outlineStyle === "solid"`) {
		t.Fatal("Tab does not lead to the graph, or its focus is not visible")
	}
	for range 5 {
		p.press(kb.ArrowDown)
	}
	if got, want := strings.ReplaceAll(p.text("#live"), "\u00a0", " "),
		"ExecSort, postgres, 5.50 s, 55.0 % of database time, level 5, 1 frame further in"; got != want {
		t.Errorf("the live region says %q, want %q", got, want)
	}
	p.press(kb.ArrowRight)
	if got := p.text("#detail b"); got != "LockAcquire" {
		t.Errorf("to the right is %q", got)
	}
	p.press(kb.Enter)
	if got := p.text("#chips"); got != "Zoom: LockAcquire ✕" {
		t.Errorf("Enter: %q", got)
	}
	p.press(kb.ArrowUp)
	p.press("f")
	if got := p.text("#chips"); got != "Focus: ExecutorRun ✕" {
		t.Errorf("F: %q", got)
	}
	p.press(kb.Escape)
	if got := p.text("#chips"); got != "" {
		t.Errorf("Escape leaves %q", got)
	}
	p.press("i")
	if !js[bool](p, `state.invert`) {
		t.Error("I does not invert")
	}
	p.press("/")
	if !js[bool](p, `document.activeElement.id === "search"`) {
		t.Error("/ does not lead to the search")
	}
	p.run(chromedp.Focus("#tab-functions"))
	p.press(kb.ArrowRight)
	if !js[bool](p, `document.activeElement.id === "tab-queries" &&
		document.activeElement.getAttribute("aria-selected") === "true" && !!document.getElementById("table-queries")`) {
		t.Error("an arrow key does not lead to the next table")
	}
	p.run(chromedp.Focus("#table-queries thead th:last-child button"))
	p.press(kb.Enter)
	got := js[string](p, `document.querySelector("#table-queries th:last-child").getAttribute("aria-sort")`)
	if got != "descending" {
		t.Errorf("sorted %q", got)
	}
}

// TestFrameTable walks the graph in the table that is its alternative.
func TestFrameTable(t *testing.T) {
	p := open(t, server(), profilefmt.Options{}, "tab=frame")
	for _, name := range []string{"main", "PostgresMain", "exec_simple_query", "ExecutorRun"} {
		p.run(chromedp.Click("#table-frame tbody button"))
		if got := p.text("#panel dd"); got != name {
			t.Fatalf("the table leads to %q, want %q", got, name)
		}
	}
	want := map[string]float64{"ExecSort": 5.5e9, "LockAcquire": 3e9, "[postgres]": 1e9, "plpgsql:take_stock(text)": 5e8}
	if got := p.rows("frame"); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("ExecutorRun calls %v, want %v", got, want)
	}
	p.picture("frame", 1280, 800, false)
	p.visit("tab=frame&merge=0")
	for range 4 {
		p.run(chromedp.Click("#table-frame tbody button"))
	}
	if _, ok := p.rows("frame")["postgres+0x1234"]; !ok {
		t.Errorf("without merging, ExecutorRun calls %v", p.rows("frame"))
	}
}

// TestGroups: the values of a label become the outermost frames.
func TestGroups(t *testing.T) {
	p := open(t, server(), profilefmt.Options{Root: []string{"user"}}, "time=database.background.idle&view=icicle")
	names := js[[]string](p, `graph.rows[1].map((r) => nodeName(r.node))`)
	if got := strings.Join(names, ", "); got != "bob, alice, (no user)" {
		t.Errorf("groups: %s", got)
	}
	if got, want := sum(p.rows("functions")), server().total(3); got != want {
		t.Errorf("functions add up to %v, want %v", got, want)
	}
	p.picture("groups", 1280, 800, true)
}

// TestMemory: bytes have their units, and there is no database time.
func TestMemory(t *testing.T) {
	b := newBuilder("alloc_objects/count", "alloc_space/bytes", "inuse_objects/count", "inuse_space/bytes")
	b.add("TopMemoryContext;CacheMemoryContext", []int64{100, 3 << 20, 50, 3 << 19}, "backend_type=checkpointer")
	b.add("TopMemoryContext;MessageContext", []int64{2000, 1 << 20, 0, 0}, "backend_type=checkpointer")
	p := open(t, b, profilefmt.Options{Title: "Memory", Noun: "context"}, "")
	if got := p.text("#detail b"); got != "all: 1.50 MB, 100.0 % of the total" {
		t.Errorf("in use: %q", got)
	}
	p.run(chromedp.Click(`#types input[value="1"]`))
	if got := p.text("#detail b"); got != "all: 4 MB, 100.0 % of the total" {
		t.Errorf("allocated: %q", got)
	}
	p.run(chromedp.Click(`#types input[value="0"]`))
	if got := p.text("#detail b"); got != "all: 2,100, 100.0 % of the total" {
		t.Errorf("objects: %q", got)
	}
	tabs := js[string](p, `[...document.querySelectorAll("#tabs button:not([hidden])")].map((e) => e.textContent).join()`)
	if tabs != "Contexts,Labels,Frame" {
		t.Errorf("tables: %s", tabs)
	}
	if got := p.text("#parts") + p.text("#table-functions tfoot"); got != "Sum of self2,100100.0 %" {
		t.Errorf("sum: %q", got)
	}
	p.picture("memory", 1280, 800, false)
}

// TestHostileNames: no text of a profile becomes an element, runs, or is hidden.
func TestHostileNames(t *testing.T) {
	const (
		script = `</script><script>alert(1)</script>`
		image  = `<img src=x onerror=alert(2)>`
		turned = "safe\u202egnp.exe\u2028\u2066\x1b[2J\x00\xff"
		proto  = "__proto__"
	)
	b := newBuilder("wall/nanoseconds", "<b>odd</b>/<i>unit</i>")
	names := []string{script, image, turned, `"'><svg onload=alert(3)>`, proto, "{{script}}", "${alert(4)}", ""}
	for _, name := range names {
		b.add("main;"+name, []int64{1000, 1}, "database="+name, "query_id="+image, "query="+script, "wait_event="+turned,
			"wait_event_type="+image, script+"="+name)
	}
	b.Mapping = append(b.Mapping, b.mapping("/bin/"+image))
	b.Mapping = b.Mapping[:1]
	b.Location[0].Mapping = b.Mapping[0]
	o := profilefmt.Options{Title: script + "{{data}}", Subtitle: image, Notes: []string{turned}, Root: []string{script}}
	p := open(t, b, o, "")
	check := func() {
		t.Helper()
		if n := js[int](p, `document.querySelectorAll("img, svg, b b, script:not(#data), iframe, object").length`); n != 1 {
			t.Errorf("the page has %d elements that it should not have", n-1)
		}
	}
	check()
	for _, tab := range []string{"functions", "queries", "waits", "labels", "frame"} {
		p.visit("time=database.background.idle&colour=wait&tab=" + tab)
		check()
	}
	p.visit("merge=0&view=icicle")
	shown := js[[]string](p, `graph.rows.flatMap((row) => row.map((r) => nodeName(r.node)))`)
	for _, want := range []string{script, image, `safe\u202egnp.exe\u2028\u2066\x1b[2J\x00\xff`, proto} {
		if !strings.Contains(strings.Join(shown, "\n"), want) {
			t.Errorf("the graph does not show %q: %q", want, shown)
		}
	}
	for i := range 5 {
		p.run(chromedp.Click(fmt.Sprintf("#filters details:nth-child(%d) summary", i+1)))
		check()
		p.press(kb.Escape)
	}
	for _, selector := range []string{"#title", "#subtitle", "#detail", "#legend", "#panel"} {
		if text := p.text(selector); strings.ContainsAny(text, "\u202e\u2028\u2066\x1b\x00") {
			t.Errorf("%s has characters that hide: %q", selector, text)
		}
	}
	p.picture("hostile", 1280, 800, false)
	page, err := os.ReadFile(p.file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(strings.ToLower(string(page)), "</script"); n != 2 {
		t.Errorf("the file ends %d scripts, want 2", n)
	}
	p.visit("search=%3Cimg%20src%3Dx%20onerror%3Dalert(5)%3E&type=%3Cb%3E&zoom=1.2.__proto__&focus=99999999" +
		"&group=constructor&tab=x")
	check()
}

// TestPolicy: the page's policy does not let a script run that got into the page by a fault of this program.
func TestPolicy(t *testing.T) {
	p := open(t, odd(), profilefmt.Options{}, "")
	ran := js[bool](p, `(() => {
		const script = document.createElement("script");
		script.textContent = "window.ran = true";
		document.body.append(script);
		const div = document.createElement("div");
		div.innerHTML = "<img src=x onerror='window.ran = true'>";
		document.body.append(div);
		return new Promise((done) => setTimeout(() => done(window.ran === true), 200));
	})()`)
	if ran {
		t.Error("the page runs a foreign script")
	}
	p.mu.Lock()
	p.problems = nil // the browser reports the image as a request, and then refuses it
	p.mu.Unlock()
}

// TestLayout: nothing is wider than the window, and no control covers another, in windows of several sizes.
func TestLayout(t *testing.T) {
	p := open(t, server(), profilefmt.Options{Title: "Profile of /srv/15/main", Subtitle: "all processes"}, "")
	for _, size := range [][2]int64{{1280, 800}, {1920, 1080}, {1024, 768}, {480, 900}, {340, 700}} {
		p.run(chromedp.EmulateViewport(size[0], size[1]))
		p.wait(fmt.Sprintf(`innerWidth === %d && graph.width === graph.box.clientWidth`, size[0]))
		problems := js[[]string](p, `(() => {
			const problems = [];
			const root = document.documentElement;
			if (root.scrollWidth > innerWidth) problems.push("the page is " + root.scrollWidth + " wide");
			const controls = "button, select, summary, input[type=search], #box, #detail, #legend, #panel";
			const all = [...document.querySelectorAll(controls)]
				.filter((e) => e.checkVisibility() && !e.closest("#panel table, dialog"));
			const boxes = all.map((e) => e.getBoundingClientRect());
			for (let i = 0; i < all.length; i++) {
				if (boxes[i].right > innerWidth + 1) problems.push(all[i].outerHTML.slice(0, 80) + " passes the window's edge");
				for (let j = i + 1; j < all.length; j++) {
					const [a, b] = [boxes[i], boxes[j]];
					const over = Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1.5 &&
						Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1.5;
					if (over) problems.push(all[i].outerHTML.slice(0, 80) + " covers " + all[j].outerHTML.slice(0, 80));
				}
			}
			return problems;
		})()`)
		for _, problem := range problems {
			t.Errorf("at %dx%d: %s", size[0], size[1], problem)
		}
		p.picture(fmt.Sprintf("server-%d", size[0]), size[0], size[1], false)
	}
	p.run(chromedp.EmulateViewport(1280, 800, chromedp.EmulateScale(2)))
	p.wait(`graph.canvas.width === 2 * graph.width`)
}

// TestManyStacks opens 8,000 different stacks, or 100,000 if Full. It logs how long that and changes of the view take.
func TestManyStacks(t *testing.T) {
	stacks := pgtest.Extent(8_000, 100_000)
	b := newBuilder("samples/count", "wall/nanoseconds")
	random := rand.New(rand.NewPCG(1, 2))
	for i := range stacks {
		var stack strings.Builder
		for depth := range 12 + random.IntN(40) {
			fmt.Fprintf(&stack, "/bin/postgres!f%d;", depth*8+random.IntN(1+depth/4))
		}
		fmt.Fprintf(&stack, "/bin/postgres!leaf%d", i%3000)
		b.add(stack.String(), []int64{1, int64(1 + random.IntN(1e7))}, fmt.Sprintf("pid=%d", i%500),
			fmt.Sprintf("query_id=%d", i%1000), "wait_event_type="+[]string{"", "IO", "Lock"}[i%3])
	}
	p := open(t, b, profilefmt.Options{Title: "Many stacks"}, "")
	if got, want := js[float64](p, `graph.tree.total[0]`), b.total(1); got != want {
		t.Errorf("the graph shows %v ns, the profile has %v", got, want)
	}
	t.Logf("%.0f ms to open", js[float64](p, `performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd`))
	for _, action := range []string{
		`change({ type: 0 })`, `change({ colour: "wait" })`, `change({ invert: true })`, `change({ invert: false })`,
		`toggleFilter(profile.keyIndex("pid"), profile.strings.indexOf("7"))`, `change({ filters: new Map() })`,
		`change({ group: profile.keyIndex("query_id") })`, `change({ search: "leaf1" })`, `graph.paint()`, `graph.layout()`,
	} {
		t.Logf("%.0f ms for %s", js[float64](p, `(() => { const from = performance.now(); `+action+
			`; return performance.now() - from; })()`), action)
	}
	info, err := os.Stat(p.file)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d kB, %d nodes", info.Size()>>10, js[int](p, `profile.frames.length`))
	p.visit("")
	p.picture("many", 1280, 800, false)
}

// TestPageSize: without data the page is below its limit.
func TestPageSize(t *testing.T) {
	b := newBuilder("samples/count")
	b.add("main", []int64{1})
	if size := len(b.write(t, profilefmt.Options{Format: profilefmt.HTML})); size > 300_000 {
		t.Errorf("a page with one sample has %d bytes", size)
	}
}

// TestEmpty: a page without anything to draw gives the reason.
func TestEmpty(t *testing.T) {
	b := newBuilder("samples/count", "cpu/nanoseconds")
	b.add("main", []int64{1, 0}, "database=app", "pid=1")
	b.add("main;less", []int64{-1, 0}, "database=app", "pid=2")
	p := open(t, b, profilefmt.Options{}, "")
	if got := p.text("#detail"); got != "The profile has no values of the type cpu." {
		t.Errorf("no values: %q", got)
	}
	p.visit("type=samples&is.database=other")
	if got := p.text("#detail"); got != "No sample passes the filters. · 1 negative value not drawn" {
		t.Errorf("a filter that leaves nothing: %q", got)
	}
	p.run(chromedp.Click("#reset"))
	p.wait(`location.hash === ""`)
	empty := open(t, newBuilder("samples/count"), profilefmt.Options{}, "")
	if got := empty.text("#detail"); got != "The profile has no values of the type samples." {
		t.Errorf("an empty profile: %q", got)
	}
}

// TestAccessibleNames: each element that takes the focus has a role and a name for screen readers.
func TestAccessibleNames(t *testing.T) {
	p := open(t, server(), profilefmt.Options{Title: "Names"}, "")
	for _, tab := range []string{"functions", "queries", "waits", "labels", "frame"} {
		p.visit("tab=" + tab)
		tree, err := chromedp.Call(p.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
		if err != nil {
			t.Fatal(err)
		}
		focusable := 0
		for _, node := range tree.Nodes {
			if !slices.ContainsFunc(node.Properties, func(p *accessibility.Property) bool {
				return p.Name == accessibility.PropertyNameFocusable && string(p.Value.Value) == "true"
			}) {
				continue
			}
			focusable++
			if node.Name == nil || len(node.Name.Value) <= len(`""`) {
				t.Errorf("table %s: a %s has no name", tab, node.Role.Value)
			}
		}
		if focusable < 25 {
			t.Errorf("table %s: only %d elements take the focus", tab, focusable)
		}
	}
}

// TestContrast: text has a contrast of at least 4.5 to its background, in both themes (WCAG 2.1, level AA).
func TestContrast(t *testing.T) {
	p := open(t, server(), profilefmt.Options{}, "")
	for _, theme := range []string{"light", "dark"} {
		low := js[[]string](p, `(() => {
			const root = document.documentElement;
			root.dataset.theme = "`+theme+`";
			graph.colours.dark = root.dataset.theme === "dark";
			const ctx = document.createElement("canvas").getContext("2d");
			const luminance = (colour) => {
				ctx.fillStyle = colour;
				ctx.fillRect(0, 0, 1, 1);
				const [r, g, b] = [...ctx.getImageData(0, 0, 1, 1).data].map((c) => c / 255)
					.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
				return 0.2126 * r + 0.7152 * g + 0.0722 * b;
			};
			const own = (name) => getComputedStyle(root).getPropertyValue(name).trim();
			const low = [];
			const check = (what, a, b) => {
				const [x, y] = [luminance(a), luminance(b)];
				const ratio = (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
				if (ratio < 4.5) low.push(what + " " + ratio.toFixed(2));
			};
			for (const back of ["--paper", "--back", "--bar", "--hover"]) check("ink on " + back, own("--ink"), own(back));
			for (const back of ["--paper", "--back", "--hover"]) check("soft on " + back, own("--soft"), own(back));
			check("accent", own("--accent-ink"), own("--accent"));
			check("bad", own("--bad"), own("--back"));
			for (const back of ["--frame-group"]) check(back, own("--frame-text"), own(back));
			check("match", "#1c0018", own("--frame-match"));
			for (const [name, colour] of waitColours) check("wait " + name, own("--frame-text"), graph.colours.css(colour, 0));
			for (const hue of [...moduleHues, 0, 18, 30, 51, 212, 265]) {
				for (const shift of [-4, 4]) {
					for (const [s, l] of [[48, 68], [82, 68], [70, 70]]) {
						check("hue " + hue, own("--frame-text"), graph.colours.css([hue, s, l], shift));
					}
				}
			}
			return low;
		})()`)
		if len(low) > 0 {
			t.Errorf("%s: contrast is too low: %s", theme, strings.Join(low, ", "))
		}
	}
}

// TestLongNames: Go's functions lose the folders of their packages before they are cut. The whole name is a click away.
func TestLongNames(t *testing.T) {
	const long = "github.com/owner/project/package.(*Type).Method"
	b := newBuilder("cpu/nanoseconds")
	b.add("/bin/program!main.main;/bin/program!"+long, []int64{1})
	p := open(t, b, profilefmt.Options{}, "")
	if got := p.text("#table-functions tbody td"); got != "package.(*Type).Method" {
		t.Errorf("the table has %q", got)
	}
	p.click(long)
	pgtest.Wait(t, "the detail of "+long, func() bool { return p.text("#detail b") == long })
	names := map[string]string{"a/b c.d": "a/b c.d", "operator/": "operator/", "x.y": "x.y", "a/b.c": "b.c"}
	for name, want := range names {
		if got := js[string](p, fmt.Sprintf(`shortName(%q)`, name)); got != want {
			t.Errorf("%q becomes %q, want %q", name, got, want)
		}
	}
}
