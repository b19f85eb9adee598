package incident

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/history/recorder"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/measure/runningplan"
	"pg_stat_backtrace/worker/pg/plan"
)

// hostile is a name that means something to HTML, terminals and file systems.
const hostile = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{.I}}\x1b[31m\u202e\x00../../etc/passwd\n"

// hostileIncident has the name in every text.
func hostileIncident(at time.Time) *Incident {
	session := Session{
		PID: 1, Type: hostile, Database: hostile, User: hostile, App: hostile, Client: hostile, State: hostile, WaitType: hostile, WaitEvent: hostile,
		Query: hostile, Phrase: hostile, PhraseKey: hostile, Process: hostile,
		BlockedBy: []store.Blocker{{PID: 2, Lock: hostile, Mode: hostile, Object: hostile}},
	}
	return &Incident{
		Schema: Schema, ID: newID(at, "lock_wait"), Time: at, Program: hostile, Reason: rules.Finding{Rule: hostile, Cause: hostile, Summary: hostile},
		Server: Server{SystemID: hostile, Version: hostile, DataDir: hostile}, Sessions: []Session{session},
		Forest: forest([]Session{session}),
		Stacks: []ProcessStack{
			{PID: 1, Error: hostile},
			{PID: 2, Stack: &recorder.Stack{
				Frames: []string{recorder.Procedural + hostile}, Cut: hostile, Method: hostile, Phrase: hostile, Advice: hostile, Page: hostile, Function: hostile,
			}},
		},
		History: History{
			Seconds: []Second{{Time: at, Counts: map[string]int{hostile: 1, "Lock": -5}}}, Spans: []Span{{From: at, To: at, Session: session}},
		},
		Settings: []Setting{{hostile, 1, hostile}},
		Host: Host{
			Name: hostile, Kernel: hostile, Load: hostile, Memory: map[string]int64{hostile: 1}, Pressure: map[string][]string{hostile: {hostile}},
			Disks: []Disk{{Path: hostile, Error: hostile}},
		},
		Missing: []string{hostile},
		Memory:  []ProcessMemory{{PID: 1, Type: hostile, Largest: []ContextsSum{{hostile, 1}}, Error: hostile}},
		Plans:   []ProcessPlan{{PID: 1, Error: hostile, Statements: []*PlanNode{{Type: hostile, Name: hostile, Title: hostile, Children: []*PlanNode{{Type: hostile, Name: hostile, Title: hostile}}}}}},
		WAL:     &WAL{Checkpoint: hostile, End: hostile, Replayed: hostile, Error: hostile, Senders: []Receiver{{Sent: hostile, Write: hostile, Flush: hostile, Apply: hostile}}},
	}
}

// TestLayoutOfPlans expects the remark on an unproven layout above the plans that need it, in each form.
func TestLayoutOfPlans(t *testing.T) {
	t.Parallel()
	tree := []*PlanNode{{Type: "Seq Scan"}}
	i := &Incident{Schema: Schema, ID: "x", Plans: []ProcessPlan{
		{PID: 71171, Statements: tree}, {PID: 72272, Statements: tree, Proven: true}, {PID: 73373, Error: "it executes no plan"},
	}}
	var text strings.Builder
	if err := Text(&text, i); err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]string{"text": text.String(), "page": string(Page(i))} {
		at, next := strings.Index(got, runningplan.Unproven), strings.LastIndex(got, "72272")
		if strings.Count(got, runningplan.Unproven) != 1 || at < strings.LastIndex(got, "71171") || at > next {
			t.Errorf("%s: %s", name, got)
		}
	}
	clean, _ := Anonymous(i)
	for name, list := range map[string][]ProcessPlan{"bundle": clean.Plans, "JSON": i.Plans} {
		encoded, err := json.Marshal(list)
		if err != nil || strings.Count(string(encoded), `"layout_proven":true`) != 1 || strings.Count(string(encoded), `"layout_proven":false`) != 2 {
			t.Errorf("%s: %s, %v", name, encoded, err)
		}
	}
}

// TestHostileNames expects no markup and no control characters in the files that people open, and no part of the name
// in a bundle.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	d := Dir{Path: filepath.Join(t.TempDir(), "incidents"), Keep: 5, Size: 1 << 30}
	path, err := d.Write(hostileIncident(time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	list, err := d.List()
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	i, err := d.Read(list[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(strings.TrimSuffix(path, ".html") + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	if err := Text(&shown, i); err != nil {
		t.Fatal(err)
	}
	for name, out := range map[string]string{"page": string(page), "json": string(text), "text": shown.String()} {
		for _, bad := range []string{"\x1b", "\u202e", "\x00"} {
			if strings.Contains(out, bad) {
				t.Errorf("%q is in the %s", bad, name)
			}
		}
	}
	if strings.Contains(string(page), "<script") || strings.Contains(string(page), "<img") {
		t.Errorf("markup of a name is in the page:\n%s", page)
	}
	clean, _ := Anonymous(i)
	b, err := json.Marshal(clean)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"<", "\\u003c", "'", "passwd\\n", "{{"} {
		if strings.Contains(string(b), bad) {
			t.Errorf("%q is in the bundle: %s", bad, b)
		}
	}
}

// TestForgedFiles has files in the directory that no worker has written.
func TestForgedFiles(t *testing.T) { // not parallel, because it measures the memory of this process
	d := Dir{Path: t.TempDir(), Keep: 100, Size: 1 << 30}
	good := hostileIncident(time.Now())
	if _, err := d.Write(good); err == nil {
		t.Error("a directory with mode 0755 was used")
	}
	if err := os.Chmod(d.Path, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Write(good); err != nil {
		t.Fatal(err)
	}
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(d.Path, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	deep := strings.Repeat(`{"pid":1,"blocked":[`, 5000) + strings.Repeat(`]}`, 5000)
	put("text.json", "no JSON")
	put("newer.json", `{"schema_version":2,"id":"newer"}`)
	put("other.json", `{"schema_version":1,"id":"another"}`)
	put("deep.json", `{"schema_version":1,"id":"deep","forest":[`+deep+`]}`)
	put("hole.json", `{"schema_version":1,"id":"hole","forest":[null]}`)
	put("large.json", strings.Repeat(" ", readLimit+1))
	put("not ours.json", "{}")
	// Small files that would take much memory, or become large when they are printed.
	fat := func(member, element string, n int) string {
		return `{"schema_version":1,"id":"ID",` + member + strings.TrimSuffix(strings.Repeat(element+",", n), ",") + `]}`
	}
	nested := strings.Repeat(`{"children":[`, 4000) + strings.Repeat(`]}`, 4000)
	for id, text := range map[string]string{
		"sessions": fat(`"sessions":[`, "{}", 5_000_000), "nulls": fat(`"sessions":[`, "null", 3_000_000),
		"numbers": fat(`"sessions":[`, "1", 7_000_000), "members": fat(`"missing":["\\\"],[,"],"host":{"memory":{"a":1},"x":[`, `{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8}`, 60_000) + "}",
		"plans": fat(`"plans":[`, `{"statements":[`+nested+`]}`, 1),
	} {
		put(id+".json", strings.Replace(text, "ID", id, 1))
	}
	if err := os.Mkdir(filepath.Join(d.Path, "folder.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(d.Path, "pipe.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := hostileIncident(time.Now()) // a valid incident elsewhere
	elsewhere := Dir{Path: filepath.Join(t.TempDir(), "incidents"), Keep: 1, Size: 1 << 30}
	if _, err := elsewhere.Write(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(elsewhere.Path, link.ID+".json"), filepath.Join(d.Path, link.ID+".json")); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]error{
		"text": ErrUnreadable, "newer": ErrUnreadable, "other": ErrUnreadable, "deep": ErrUnreadable, "hole": ErrUnreadable, "large": ErrUnreadable,
		"pipe": ErrUnreadable, link.ID: ErrUnreadable, "missing": ErrNotFound, "../../etc/passwd": ErrNotFound, "not ours": ErrNotFound, "": ErrNotFound,
		"-x": ErrNotFound, strings.Repeat("a", 100): ErrNotFound, "folder": ErrUnreadable, "sessions": ErrUnreadable, "nulls": ErrUnreadable,
		"numbers": ErrUnreadable, "members": ErrUnreadable, "plans": ErrUnreadable,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := d.Read(id)
		if runtime.ReadMemStats(&after); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", id, err, want)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 10*readLimit {
			t.Errorf("%q takes %d MB", id, took>>20)
		}
	}
	if _, err := d.Read(link.ID); err == nil || !strings.HasSuffix(err.Error(), "is a symbolic link") {
		t.Error(err)
	}
	if _, err := d.Read(good.ID); err != nil {
		t.Error(err)
	}
	if list, err := d.List(); err != nil || len(list) != 12 {
		t.Errorf("%v, %v", list, err)
	}
}

// TestBounds writes more incidents than are kept, larger ones than are allowed, and to a full file system.
func TestBounds(t *testing.T) {
	t.Parallel()
	d := Dir{Path: filepath.Join(t.TempDir(), "incidents"), Keep: 3, Size: 1 << 30}
	begin := time.Date(2026, 11, 28, 3, 0, 0, 0, time.UTC)
	var last string
	for n := range 6 {
		i := hostileIncident(begin.Add(time.Duration(n) * time.Minute))
		last = i.ID
		if _, err := d.Write(i); err != nil {
			t.Fatal(err)
		}
	}
	list, err := d.List()
	if err != nil || len(list) != 3 || list[2].ID != last {
		t.Errorf("%v, %v", list, err)
	}
	large := hostileIncident(begin.Add(time.Hour))
	for n := range 4_000 {
		s := large.Sessions[0]
		s.PID, s.Query = int32(n), strings.Repeat("x", 1500)
		large.History.Spans = append(large.History.Spans, Span{Session: s})
	}
	if _, err := d.Write(large); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(d.Path, large.ID+".json")); err != nil || st.Size() > 2*fileLimit || large.History.LeftOut == 0 {
		t.Errorf("%v, %v", st, err)
	}
	for n := range large.History.Spans { // one byte before the escapes, six bytes in the file
		large.History.Spans[n].Session.Query = strings.Repeat("\x7f", 1500)
	}
	if _, err := d.Write(large); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(d.Path, large.ID+".json")); err != nil || st.Size() > fileLimit {
		t.Errorf("%v, %v", st, err)
	}
	if _, err := d.Read(large.ID); err != nil {
		t.Error(err)
	}
	d.Size = 100 << 10
	if _, err := d.Write(hostileIncident(begin.Add(2 * time.Hour))); err != nil {
		t.Fatal(err)
	}
	if list, err := d.List(); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	full := Dir{Path: d.Path, Keep: 5, Size: 1 << 30, MinFree: 1 << 60}
	if _, err := full.Write(hostileIncident(begin.Add(3 * time.Hour))); !errors.Is(err, ErrNoSpace) {
		t.Errorf("%v with a full file system", err)
	}
	names, err := os.ReadDir(d.Path)
	if err != nil || len(names) != 2 {
		t.Errorf("%v, %v", names, err)
	}
}

// TestBoundsKeepRareRules has one incident of a rule, and then more of another rule than are kept.
func TestBoundsKeepRareRules(t *testing.T) {
	t.Parallel()
	d := Dir{Path: filepath.Join(t.TempDir(), "incidents"), Keep: 4}
	begin := time.Date(2026, 11, 28, 3, 0, 0, 0, time.UTC)
	var want []string
	for n, rule := range []string{rules.Archiver, rules.LockWait, rules.LockWait, rules.LockWait, rules.LockWait, rules.LockWait} {
		i := hostileIncident(begin.Add(time.Duration(n) * time.Minute))
		i.ID = newID(i.Time, rule)
		if _, err := d.Write(i); err != nil {
			t.Fatal(err)
		}
		if n == 0 || n > 2 {
			want = append(want, i.ID)
		}
	}
	list, err := d.List()
	if err != nil || !slices.EqualFunc(list, want, func(e Entry, id string) bool { return e.ID == id }) {
		t.Errorf("%v, want %v, %v", list, want, err)
	}
}

// TestLargePlans writes incidents with plans that do not fit into a file: chains of very many joins, and nodes with long names. The
// plans that have no room are left out, and no other part is. Then it does the same with stacks.
func TestLargePlans(t *testing.T) {
	t.Parallel()
	chain := &plan.Node{Kind: "Result"}
	for range 600 {
		chain = &plan.Node{Kind: "NestLoop", Children: []*plan.Node{chain, {Kind: "FunctionScan"}}}
	}
	long := map[string]any{plan.IndexName: strings.Repeat("\x7f", maxText)} // six bytes in the file for each
	wide := &plan.Node{Kind: "Append"}
	for range maxPlanNodes {
		wide.Children = append(wide.Children, &plan.Node{Kind: "SeqScan", Properties: long})
	}
	var deep []string
	for range maxFrames {
		deep = append(deep, strings.Repeat("\x7f", 512))
	}
	d := Dir{Path: filepath.Join(t.TempDir(), "incidents"), Keep: 5, Size: 1 << 30}
	for name, top := range map[string]*plan.Node{"deep": chain, "wide": wide, "stacks": nil} {
		i := hostileIncident(time.Now())
		i.Plans = nil
		for pid := range int32(maxPlans) {
			p, nodes := ProcessPlan{PID: 1 + pid}, planCopy{room: maxPlanNodes}
			if top != nil {
				p.Statements = []*PlanNode{nodes.node(top, 0)}
			}
			if p.LeftOut = nodes.leftOut; top != nil && copied(p.Statements[0])+p.LeftOut != nodesOf(top) {
				t.Errorf("%s: %d of %d nodes are left out, and %d are not", name, p.LeftOut, nodesOf(top), copied(p.Statements[0]))
			}
			i.Plans = append(i.Plans, p)
		}
		for range maxStacks / 2 {
			if top == nil {
				i.Stacks = append(i.Stacks, ProcessStack{PID: 3, Stack: &recorder.Stack{Frames: deep}})
			}
		}
		stacks := len(i.Stacks)
		if _, err := d.Write(i); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := d.Read(i.ID)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(got.Plans) != maxPlans || len(got.Stacks) != stacks || top != nil && (len(got.History.Spans) != 1 || len(got.Sessions) != 1) {
			t.Errorf("%s: %d plans, %d stacks, %d spans", name, len(got.Plans), len(got.Stacks), len(got.History.Spans))
		}
		if (name == "deep") != bytes.Contains(Page(got), []byte("<p>1000 further nodes are left out.</p>")) {
			t.Errorf("%s: the page does not count the nodes", name)
		}
		if last := got.Plans[maxPlans-1]; name == "wide" && last.Error != tooLarge || name == "deep" && got.Plans[0].Error != "" {
			t.Errorf("%s: %q, %q", name, got.Plans[0].Error, last.Error)
		}
		if last := got.Stacks[stacks-1]; top == nil && (last.Stack != nil || last.Error != tooLarge || got.Stacks[2].Stack == nil) {
			t.Errorf("%s: %+v", name, last)
		}
	}
}

func copied(n *PlanNode) int {
	count := 1
	for _, child := range n.Children {
		count += copied(child)
	}
	return count
}

// TestRewriteFails has a JSON file that cannot be written again: the page that belongs to the old one stays.
func TestRewriteFails(t *testing.T) {
	t.Parallel()
	d := Dir{Path: filepath.Join(t.TempDir(), "incidents"), Keep: 5, Size: 1 << 30}
	i := hostileIncident(time.Now())
	page, err := d.Write(i)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(d.Path, i.ID+".json.tmp", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.End(i.ID, time.Now()); err == nil {
		t.Error("the end was written")
	}
	if _, err := os.Stat(page); err != nil {
		t.Error(err)
	}
}

// TestFullDisk has a file system that takes the page, and no second file.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "nr_inodes=2,mode=0700"); err != nil {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	d := Dir{Path: dir, Keep: 5, Size: 1 << 30}
	if _, err := d.Write(hostileIncident(time.Now())); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v, want ENOSPC", err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("%v, %v: a part of an incident is left", names, err)
	}
}

// TestMissingHistory expects the error to name the directory that is missing, not the directory of incidents below it.
func TestMissingHistory(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state")
	d := Dir{Path: DirOf(state, "7577921432")}
	for _, missing := range []string{state, filepath.Dir(d.Path)} {
		_, err := d.Write(hostileIncident(time.Now()))
		textErr := d.WriteText("a.txt", nil)
		for _, err := range []error{err, textErr} {
			if !errors.Is(err, ErrDirectory) || !strings.HasSuffix(err.Error(), missing+" does not exist: no history is recorded") {
				t.Errorf("without %s: %v", missing, err)
			}
		}
		if err := os.Mkdir(missing, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Write(hostileIncident(time.Now())); err != nil {
		t.Error(err)
	}
}

// TestForest has a chain, a queue, a deadlock, and several holders.
func TestForest(t *testing.T) {
	t.Parallel()
	blocked := func(pid int32, by ...store.Blocker) Session { return Session{PID: pid, BlockedBy: by} }
	hard := func(pid int32) store.Blocker { return store.Blocker{PID: pid} }
	soft := func(pid int32) store.Blocker { return store.Blocker{PID: pid, Soft: true} }
	var show func(list []*Node) string
	show = func(list []*Node) string {
		var parts []string
		for _, n := range list {
			text := strconv.Itoa(int(n.PID))
			if n.Again {
				text += "*"
			}
			if len(n.Blocked) > 0 {
				text += "(" + show(n.Blocked) + ")"
			}
			parts = append(parts, text)
		}
		return strings.Join(parts, " ")
	}
	var long []Session // a tree has at most 101 levels
	for pid := range int32(150) {
		long = append(long, blocked(pid+1, hard(pid+2)))
	}
	if list := forest(long); len(list) != 2 || size(list[0])+size(list[1]) != 150 {
		t.Errorf("a long chain: %s", show(list))
	}
	for name, c := range map[string]struct {
		list []Session
		want string
	}{
		"chain":             {[]Session{blocked(3, hard(2)), blocked(2, hard(1)), {PID: 1}}, "1(2(3))"},
		"queue":             {[]Session{blocked(2, hard(1)), blocked(3, hard(1), soft(2))}, "1(2 3)"},
		"deadlock":          {[]Session{blocked(1, hard(2)), blocked(2, hard(1))}, "2(1(2*))"},
		"behind a deadlock": {[]Session{blocked(1, hard(2)), blocked(2, hard(3)), blocked(3, hard(4)), blocked(4, hard(3))}, "3(2(1) 4(3*))"},
		"holders":           {[]Session{blocked(3, hard(1), hard(2)), blocked(4, hard(3))}, "1(3(4)) 2(3*)"},
		"prepared":          {[]Session{blocked(2, hard(0))}, "0(2)"},
		"none":              {[]Session{{PID: 1}}, ""},
	} {
		if got := show(forest(c.list)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
