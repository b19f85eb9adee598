package cli

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	pprof "github.com/google/pprof/profile"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/cli/measurecmd"
	"pg_stat_backtrace/worker/report/units"
)

// TestMemory prints the memory contexts of an idle backend in all forms, with the same bytes in each.
func TestMemory(t *testing.T) {
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	conn := server.Connect(t, server.User, "postgres")
	execute(t, conn, "PREPARE p AS SELECT 'a;\nb'")
	statements := "SET application_name = 'memory test'"
	if server.Major >= 15 { // otherwise the idle process wakes up some seconds later for its statistics, and its memory changes
		statements += "; SELECT pg_stat_force_next_flush()"
	}
	execute(t, conn, statements)
	pid := strconv.Itoa(int(conn.PgConn().PID()))

	status, text, stderr := run(t, "memory", "--top", "1000", pid)
	title := regexp.MustCompile(`^process ` + pid + `, PostgreSQL \d+: (\d+) memory contexts with (\d+ \w+), ` +
		`\d+ \w+ of them free\n`)
	head := title.FindStringSubmatch(text)
	if status != 0 || stderr != "" || head == nil || !strings.Contains(text, "\nresident: ") ||
		!regexp.MustCompile(`(?m)^ +\d+ \w+ +\d+ \w+ +1  TopMemoryContext$`).MatchString(text) {
		t.Fatalf("status %d, %q\n%s", status, stderr, text)
	}
	count, _ := strconv.Atoi(head[1])

	_, raw, _ := run(t, "memory", "--format", "json", pid)
	var doc measurecmd.MemoryDocument
	if err := json.Unmarshal([]byte(raw), &doc); err != nil || !doc.Consistent || len(doc.Contexts) != count ||
		doc.Rollup == nil || doc.Private.Heap == 0 || doc.Contexts[1].Parent != "TopMemoryContext" {
		t.Fatalf("%v\n%s", err, raw)
	}
	total := 0
	for i := range doc.Contexts {
		total += int(*doc.Contexts[i].TotalBytes)
	}
	if head[2] != units.Size(total) {
		t.Errorf("the text has %s, JSON %d bytes", head[2], total)
	}

	checkServerMemory(t, server.DataDir, pid, total)
	_, tree, _ := run(t, "memory", "--tree", pid)
	if n := strings.Count(tree, " total in "); n != count || !strings.Contains(tree, ": PREPARE p AS SELECT 'a; b'\n") {
		t.Errorf("%d contexts in the tree, want %d\n%s", n, count, tree)
	}

	_, folded, _ := run(t, "memory", "--format", "folded", pid)
	sum := 0
	for line := range strings.Lines(folded) {
		at := strings.LastIndexByte(line, ' ')
		n, err := strconv.Atoi(strings.TrimSpace(line[at+1:]))
		if err != nil || !strings.HasPrefix(line, "TopMemoryContext") {
			t.Fatalf("%q: %v", line, err)
		}
		sum += n
	}
	if sum != total {
		t.Errorf("folded has %d bytes, JSON %d", sum, total)
	}

	checkMemoryProfile(t, pid, count, total)
	if status, _, stderr := run(t, "memory", sleeper(t)); status != 1 || !strings.Contains(stderr, "is no process of a PostgreSQL server") {
		t.Errorf("another program: status %d, %q", status, stderr)
	}
	if status, _, _ := run(t, "memory", "--format", "xml", pid); status != 2 {
		t.Errorf("a wrong format: status %d", status)
	}
}

// TestMemoryOfSavepoints: a backend with more open savepoints than a tree has levels. All formats have all bytes, and say
// how many contexts are in the figures of their ancestors.
func TestMemoryOfSavepoints(t *testing.T) {
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	conn := server.Connect(t, server.User, "postgres")
	const savepoints = 400
	statements := "CREATE TEMP TABLE w (a int); BEGIN;" + strings.Repeat("SAVEPOINT s; INSERT INTO w VALUES (1);", savepoints)
	if _, err := conn.PgConn().Exec(t.Context(), statements).ReadAll(); err != nil {
		t.Fatal(err)
	}
	pid := strconv.Itoa(int(conn.PgConn().PID()))

	status, text, stderr := run(t, "memory", pid)
	head := regexp.MustCompile(`: (\d+) memory contexts with (\d+ \w+)`).FindStringSubmatch(text)
	if status != 0 || head == nil || !regexp.MustCompile(`\d+ memory contexts are below level (199|200): `).MatchString(stderr) {
		t.Fatalf("status %d, %q\n%s", status, stderr, text)
	}
	count, _ := strconv.Atoi(head[1])
	if count < savepoints || !regexp.MustCompile(`(?m) 400  CurTransactionContext$`).MatchString(text) {
		t.Errorf("%s", text)
	}

	_, raw, _ := run(t, "memory", "--format", "json", pid)
	var doc measurecmd.MemoryDocument
	if err := json.Unmarshal([]byte(raw), &doc); err != nil || !doc.Consistent || doc.LeftOut {
		t.Fatalf("%v, consistent %t, left out %t", err, doc.Consistent, doc.LeftOut)
	}
	sum, deeper, deepest := int64(0), 0, 0
	for i := range doc.Contexts {
		c := &doc.Contexts[i]
		sum, deeper, deepest = sum+*c.TotalBytes, deeper+c.Deeper, max(deepest, len(c.Path))
	}
	if units.Size(sum) != head[2] || deeper != doc.Deeper || deeper < savepoints/2-10 || len(doc.Contexts)+deeper != count ||
		deepest != 200 {
		t.Errorf("%d contexts with %d bytes on %d levels and %d (%d) deeper ones, want %d with %s", len(doc.Contexts), sum,
			deepest, deeper, doc.Deeper, count, head[2])
	}
	_, tree, _ := run(t, "memory", "--tree", pid)
	if !strings.Contains(tree, fmt.Sprintf(" used, with %d deeper contexts\n", deeper)) {
		t.Errorf("no line of the tree has %d deeper contexts", deeper)
	}
	checkMemoryProfile(t, pid, count, int(sum))
}

// checkMemoryProfile compares the profiles with the sums of the text.
func checkMemoryProfile(t *testing.T, pid string, count, total int) {
	t.Helper()
	_, raw, _ := run(t, "memory", "--format", "pprof", pid)
	p, err := pprof.ParseData([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	if sumOf(p, "total_bytes") != int64(total) || sumOf(p, "contexts") != int64(count) ||
		sumOf(p, "used_bytes")+sumOf(p, "free_bytes") != int64(total) {
		t.Errorf("the profile has %d bytes in %d contexts, the text %d in %d", sumOf(p, "total_bytes"), sumOf(p, "contexts"),
			total, count)
	}
	_, page, _ := run(t, "memory", "--format", "html", pid)
	if !strings.Contains(page, "<html") || !strings.Contains(page, "CacheMemoryContext") {
		t.Errorf("%.1000s", page)
	}
	if status, _, _ := run(t, "memory", "--format", "html", pid, pid); status != 2 {
		t.Errorf("html of two processes: status %d", status)
	}
}

// TestFlagsOfAllocations refuses flags that would do nothing.
func TestFlagsOfAllocations(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{
		"duration", "max-overhead", "sample-type", "debug-dir", "debuginfod", "debuginfod-cache", "debuginfod-max-size",
		"debuginfod-cache-size", "debuginfod-min-free", "pre", "post",
	} {
		value := "1"
		if flag == "duration" {
			value = "1s"
		}
		status, _, stderr := run(t, "memory", "--"+flag, value, "1")
		if status != 2 || !strings.Contains(stderr, "--"+flag+" needs --allocations") {
			t.Errorf("--%s: status %d, %s", flag, status, stderr)
		}
	}
}

// checkServerMemory expects the backend among the processes of the server, with the memory that the kernel states, and with
// the same bytes in contexts as "memory PID" prints.
func checkServerMemory(t *testing.T, dataDir, pid string, total int) {
	t.Helper()
	status, text, stderr := run(t, "memory", "-D", dataDir, "--format", "json")
	var got measurecmd.ServerMemoryDocument
	if err := json.Unmarshal([]byte(text), &got); err != nil || status != 0 {
		t.Fatalf("status %d, %v, %q", status, err, stderr)
	}
	last, found := uint64(1<<63), false
	for i := range got.Processes {
		p := &got.Processes[i]
		if sum := p.AnonymousBytes + p.SwappedBytes; sum > last {
			t.Errorf("process %d has more than the one before it", p.PID)
		} else {
			last = sum
		}
		if strconv.Itoa(p.PID) != pid {
			continue
		}
		found = true
		if p.Application != "memory test" || !strings.Contains(p.Query, "memory test") {
			t.Errorf("process %s: application %q, query %q", pid, p.Application, p.Query)
		}
		if p.Type != "client backend" || p.ContextsBytes == nil || int(*p.ContextsBytes) != total || len(p.Largest) != 3 ||
			p.AnonymousBytes < uint64(total)/4 {
			t.Errorf("%+v; want %d bytes in contexts", p, total)
		}
	}
	if !found {
		t.Errorf("process %s is missing: %s", pid, text)
	}
	_, text, _ = run(t, "memory", "-D", dataDir, "--top", "1")
	if !regexp.MustCompile(`shared memory does not count\npid +backend_type +database +user +application .* query\n`).MatchString(text) || !strings.Contains(text, "print more with --top\n") {
		t.Errorf("%s", text)
	}
}
