package cli

import (
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/doctor"
)

// checkCompletions expects the data directory and a process of a server among what a shell offers.
func checkCompletions(t *testing.T, s *pgtest.Server, pid int, recorded string) {
	t.Helper()
	word := strconv.Itoa(pid)
	for _, c := range []struct {
		words      []string
		want       string
		mustAbsent bool
	}{
		{[]string{"memory", "-D", ""}, s.DataDir + "\n", false},
		{[]string{"history", "-D", s.DataDir[:len(s.DataDir)-1]}, s.DataDir + "\n", false},
		{[]string{"activity", "-D", "/nowhere"}, ":16\n", false}, // folders
		{[]string{"capture", word[:len(word)-1]}, word + "\t", false},
		{[]string{"symbols", word}, word + "\t", false},
		{[]string{"trace", "exec_simple_query", word}, word + "\t", false},
		{[]string{"trace", word}, word + "\t", true},
		{[]string{"capture", word, word}, word + "\t", true},
		{[]string{"waits", "-D", s.DataDir, word}, word + "\t", true},
		{[]string{"incident", "show", "--record-dir", recorded, ""}, "last\tthe newest incident\n20", false},
		{[]string{"incident", "bundle", "--record-dir", recorded, "20"}, "-manual-", false},
		{[]string{"incident", "bundle", "--record-dir", recorded, "19"}, "-manual-", true},
		{[]string{"help", "inc"}, "incident\t", false},
		{[]string{"help", "incident", "b"}, "bundle\t", false},
	} {
		_, out, errOut := run(t, append([]string{"__complete"}, c.words...)...)
		if strings.Contains(out, c.want) == c.mustAbsent {
			t.Errorf("%q: got %q, %s", c.words, out, errOut)
		}
	}
}

// TestIgnoredOptions expects an error for each option that another one makes useless.
func TestIgnoredOptions(t *testing.T) {
	for words, want := range map[string]string{
		"capture --stats --format json 1":              "--format has no effect with --stats",
		"capture --interval 1s 1":                      "--interval has no effect without --repeat",
		"memory --tree --top 3 1":                      "--top has no effect with --tree",
		"memory --tree --format json 1":                "--tree has no effect with --format json",
		"memory --top 3 --format folded 1":             "--top has no effect with --format folded",
		"activity --tree --sort state -D /none":        "--sort has no effect with --tree",
		"top --format json --width 100 -n 1 -D /none":  "--width has no effect with --format json",
		"memory --format json --top 3 -D /none":        "/none",
		"capture --repeat 2 --interval 1ms 2147483647": "2147483647",
	} {
		if status, out, errOut := run(t, strings.Fields(words)...); status == exitOK || out != "" || !strings.Contains(errOut, want) {
			t.Errorf("%s: status %d, %s%s; want %q", words, status, out, errOut, want)
		}
	}
}

// TestServersToChoose expects no list of servers if the user has chosen a server.
func TestServersToChoose(t *testing.T) {
	none := func(string) string { return "" }
	port := func(name string) string { return map[string]string{"PGPORT": "5433"}[name] }
	for _, o := range []struct {
		o   doctor.Options
		env func(string) string
	}{{doctor.Options{DataDir: "/data"}, none}, {doctor.Options{ConnString: "port=1"}, none}, {doctor.Options{}, port}} {
		if err := serversToChoose(&o.o, o.env); err != nil {
			t.Errorf("%+v: %v", o.o, err)
		}
	}
}
