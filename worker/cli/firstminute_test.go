package cli

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

var updateFirstMinute = flag.Bool("update-first-minute", false, "write the outputs in doc/first-minute.md")

const firstMinutePage = "../../doc/first-minute.md"

// firstMinute is an output on the page: the lines of a command that match keep. A line of the page is a line of the output if
// both are equal without numbers, times and sizes.
type firstMinute struct {
	name      string
	arguments func(pid map[string]int, dir string) string
	keep      string
}

func firstMinuteOutputs() []firstMinute {
	return []firstMinute{
		{"top", func(_ map[string]int, dir string) string { return "top --batch -n 1 --width 110 --height 40 -D " + dir }, `blocks |findings |has changed row`},
		{"tree", func(_ map[string]int, dir string) string { return "activity --tree -D " + dir }, `nightly|begin; |shop|waits for trans.* stock|place_order`},
		{"capture", func(pid map[string]int, _ string) string { return fmt.Sprint("capture ", pid["shop"]) }, `^[a-z]|SQL statement|PL/pgSQL|query:`},
		{"plan", func(pid map[string]int, _ string) string { return fmt.Sprint("plan ", pid["report"]) }, `Aggregate|Nested Loop|Seq Scan`},
		{"waits", func(_ map[string]int, dir string) string { return "waits --method sampled --duration 500ms -D " + dir }, `(?i)^ *type|SyncRep`},
		{"memory", func(_ map[string]int, dir string) string { return "memory -D " + dir }, `(?i)^pid|tuplesort`},
		{"state", func(_ map[string]int, dir string) string { return "activity --sort state -D " + dir }, `^ *pid|billing|shop`},
		{"vacuum", func(pid map[string]int, _ string) string { return fmt.Sprint("capture ", pid["vacuum"]) }, `^[a-z]|in LockBufferForCleanup|query:`},
		{"idle", func(_ map[string]int, dir string) string { return "activity --tree -D " + dir }, `billing|last statement|reminder|row .* of invoices`},
	}
}

// TestFirstMinute runs the commands of doc/first-minute.md beside the incidents of the page. It also compares what the commands
// print as JSON with their schemas.
func TestFirstMinute(t *testing.T) {
	pgtest.One(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{Conf: []string{"max_connections = 20", "autovacuum = off", "jit = off"}})
		json := newOutputs(t, s)
		json.checkIdle(t)
		pids := firstMinuteIncidents(t, s)
		page, err := os.ReadFile(firstMinutePage)
		if err != nil {
			t.Fatal(err)
		}
		text := string(page)
		for _, o := range firstMinuteOutputs() {
			begin, end := "<!-- output: "+o.name+" -->\n\n", "\n<!-- output: end -->"
			before, rest, ok1 := strings.Cut(text, begin)
			block, after, ok2 := strings.Cut(rest, end)
			if !ok1 || !ok2 {
				t.Fatalf("the page has no output %q", o.name)
			}
			command := o.arguments(pids, s.DataDir)
			if *updateFirstMinute {
				lines := keptLines(t, command, o.keep, s.User)
				for i := range lines {
					lines[i] = "    " + lines[i] + "\n"
				}
				text = before + begin + strings.Join(lines, "") + end + after
				continue
			}
			var output []string
			pgtest.Wait(t, "the output "+o.name, func() bool {
				output = keptLines(t, command, o.keep, s.User)
				return missingLine(block, output) == ""
			})
		}
		json.checkIncidents(t, pids)
		checkCompletions(t, s, pids["shop"], json.recorded)
		checkCSV(t, s)
		checkChosenActivity(t, pids)
		checkWithoutRights(t, s, pids["shop"])
		checkEnvironment(t, s)
		checkExamples(t, json, pids)
		if *updateFirstMinute {
			if err := os.WriteFile(firstMinutePage, []byte(text), 0o644); err != nil { // public
				t.Fatal(err)
			}
		}
	})
}

// firstMinuteIncidents makes the incidents of the page, and returns the process ids by application.
func firstMinuteIncidents(t *testing.T, s *pgtest.Server) map[string]int {
	t.Helper()
	s.Exec(t, `CREATE TABLE stock AS SELECT 'bolt' item, 100 n;
		CREATE TABLE invoices AS SELECT 7 id, false paid;
		CREATE TABLE prices AS SELECT i FROM generate_series(1, 20000) i;
		CREATE TABLE parts AS SELECT i FROM generate_series(1, 100) i;
		CREATE FUNCTION take_from_stock(i text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
			UPDATE stock SET n = n - 1 WHERE item = i; END $$;
		CREATE FUNCTION place_order(i text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
			PERFORM take_from_stock(i); END $$;`)
	pids := map[string]int{}
	// run lets a session of an application execute statements one after the other. It does not wait for the last one.
	run := func(application string, statements ...string) {
		c := s.Connect(t, s.User, "postgres")
		execute(t, c, "SET application_name = '"+application+"'")
		last := len(statements) - 1
		for _, sql := range statements[:last] {
			execute(t, c, sql)
		}
		pids[application] = int(c.PgConn().PID())
		go func() { _, _ = c.PgConn().Exec(t.Context(), statements[last]).ReadAll() }()
	}
	shows := func(what string) {
		pgtest.Wait(t, what, func() bool { return strings.Contains(activity(t, "-D", s.DataDir), what) })
	}
	run("nightly", "SELECT 1", "begin; UPDATE stock SET n = 0; SELECT pg_sleep(3000)")
	shows("Timeout:PgSleep")
	run("shop", "SELECT place_order('bolt')")
	run("billing", "BEGIN", "UPDATE invoices SET paid = true WHERE id = 7", "SELECT 1")
	run("reminders", "UPDATE invoices SET paid = false WHERE id = 7")
	pgtest.Wait(t, "two sessions that wait", func() bool { return strings.Count(activity(t, "-D", s.DataDir), "Lock:transactionid") == 2 })
	// It sleeps most of the time, and leaves the processors to the commands.
	run("report", "SET enable_hashjoin = off; SET enable_mergejoin = off; SET max_parallel_workers_per_gather = 0",
		"SELECT count(*) FROM prices a, prices b, prices c WHERE a.i < b.i AND b.i < c.i AND ((a.i + c.i) % 2000 > 0 OR pg_sleep(0.005) IS NOT NULL)")
	run("etl", "SET work_mem = '64MB'; BEGIN",
		"DECLARE c CURSOR FOR SELECT i FROM generate_series(1, 200000) i ORDER BY -i", "FETCH c")
	run("reader", "BEGIN; DECLARE c CURSOR FOR SELECT * FROM parts", "FETCH c", "SELECT 1")
	run("vacuum", "SELECT 1", "VACUUM (FREEZE) parts")
	shows("BufferPin:BufferPin")
	s.Exec(t, "ALTER SYSTEM SET synchronous_standby_names = 'gone'")
	s.Exec(t, "SELECT pg_reload_conf()")
	pgtest.Wait(t, "the parameter", func() bool {
		c := s.Connect(t, s.User, "postgres")
		defer func() { _ = c.Close(t.Context()) }()
		var names string
		return c.QueryRow(t.Context(), "SHOW synchronous_standby_names").Scan(&names) == nil && names == "gone"
	})
	run("checkout", "SELECT 1", "UPDATE parts SET i = 0 WHERE i = 100")
	shows("IPC:SyncRep")
	return pids
}

// keptLines runs a command and returns the lines that match keep, as the page has them.
func keptLines(t *testing.T, command, keep, user string) (lines []string) {
	t.Helper()
	const widest = 116
	stdout := succeeds(t, strings.Fields(command)...)
	match := regexp.MustCompile(keep)
	for line := range strings.Lines(strings.ReplaceAll(stdout, user, "postgres")) {
		line = strings.TrimRight(line, " \n")
		if line == "" || !match.MatchString(line) {
			continue
		}
		if runes := []rune(line); len(runes) > widest {
			line = string(runes[:widest-1]) + "…"
		}
		lines = append(lines, line)
	}
	return lines
}

var (
	firstMinuteSize   = regexp.MustCompile(`(?:[≥<>] )?[0-9][0-9,.]*(?: (?:ns|us|ms|s|min|h|bytes|kB|MB|GB|%))?(?: [0-9.]+ (?:ms|s|min))?`)
	firstMinuteHex    = regexp.MustCompile(`0x[0-9a-f]+`)
	firstMinuteSpaces = regexp.MustCompile(`\s+`)
)

// shapeOf returns a line without numbers, times, sizes, and the end that may be cut.
func shapeOf(line string) string {
	line = strings.TrimLeft(line, " =>|▸▲") // the node that runs, and the selected row, differ
	line = firstMinuteHex.ReplaceAllString(line, "0")
	line = firstMinuteSize.ReplaceAllString(line, "N")
	return strings.TrimSpace(firstMinuteSpaces.ReplaceAllString(line, " "))
}

// missingLine returns a line of a block of the page that the output does not have.
func missingLine(block string, output []string) string {
	shapes := make([]string, len(output))
	for i, line := range output {
		shapes[i] = shapeOf(line)
	}
	for line := range strings.Lines(block) {
		shape, cut := strings.CutSuffix(shapeOf(line), "…")
		if shape == "" {
			continue
		}
		if !slices.ContainsFunc(shapes, func(s string) bool {
			s = strings.TrimSuffix(s, "…")
			return s == shape || cut && (strings.HasPrefix(s, shape[:len(shape)/2]))
		}) {
			return line
		}
	}
	return ""
}
