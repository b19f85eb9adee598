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
