package cli

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestWaitsRefuses expects messages for flags that make no sense together, and for processes that are no server.
func TestWaitsRefuses(t *testing.T) {
	self := strconv.Itoa(os.Getpid())
	for arguments, want := range map[string]string{
		"-D /tmp 1":                         "give either -D or process ids, not both",
		"--method best 1":                   "--method must be",
		"--format folded 1":                 "--format must be text, json or csv",
		"--duration 0 1":                    "--duration must be more than 0",
		"--duration -1s 1":                  "--duration must be more than 0",
		"x":                                 `"x" is not a process id`,
		"--trace -1":                        "--trace needs a process id",
		"--trace 99999995 99999996":         "--trace names its process",
		"--trace 99999995 --method sampled": "--trace needs a method that sees single waits",
		"--trace 99999995 --format json":    "--trace needs a method that sees single waits, and prints text only",
		"--stacks 3 1":                      "neither a share of the waits",
		"--stacks 1/2 --method blocked 1":   "--stacks needs --method exact",
		"--stacks 1/2 -f csv 1":             "--format must be one of text",
		"--stacks >1s --trace 1":            "give either --stacks or --trace",
		"-D /nonexistent":                   "/nonexistent",
		self:                                ") is no process of a PostgreSQL server",
		"--query-id x":                      `"x" is not a query id`,
		"--query-id 0":                      `"0" is not a query id`,
		"--query-id 5 --user a":             "--query-id goes together neither",
		"--query-id 5 99999997":             "--query-id goes together neither",
		"--query-id 5 --method sampled":     "--query-id needs the method exact or blocked",
		"--user a --trace 99999995":         "go together neither with --stacks nor with --trace",
		"--database a --stacks 1/2":         "go together neither with --stacks nor with --trace",
		"--type IPS 1":                      `there is no type "IPS"; the types are Activity, Buffer, BufferPin, Client`,
		"--method watchpoint 1":             "--method must be auto, exact, blocked or sampled",
	} {
		var stdout, stderr strings.Builder
		status := Main("test", append([]string{"waits"}, strings.Fields(arguments)...), &stdout, &stderr)
		if status == exitOK || !strings.Contains(stderr.String(), want) || stdout.Len() > 0 {
			t.Errorf("waits %s: status %d, %q; want %q", arguments, status, stderr.String(), want)
		}
	}
}
