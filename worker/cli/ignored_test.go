package cli

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// refusedOptions are calls in which an option has no effect, and what the error says of it. "/none" is a directory that does not exist.
func refusedOptions() map[string]string {
	return map[string]string{
		"activity --tree --sort state -D /none":                            "--sort has no effect with --tree",
		"activity -f json --query-width 9 -D /none":                        "--query-width has no effect with --format json",
		"activity -f csv --query-width 9 -D /none":                         "--query-width has no effect with --format csv",
		"activity -f csv --wide -D /none":                                  "--wide has no effect with --format csv",
		"activity --tree --wide -D /none":                                  "--wide has no effect with --tree",
		"activity -f json --tree -D /none":                                 "--tree has no effect with --format json",
		"activity -f csv --tree 1":                                         "--tree prints text or json, not csv",
		"activity --plans --no-phrases 1":                                  "--plans and --no-phrases exclude each other",
		"activity -D /none 1":                                              "give either -D or process ids",
		"capture --stats --format json 1":                                  "--format has no effect with --stats",
		"capture --interval 1s 1":                                          "--interval has no effect without --repeat",
		"capture --warm-up 3 1":                                            "--warm-up must not be negative, and goes with --stats",
		"capture --exe x 1":                                                "--exe and --sysroot are for --core",
		"capture --sysroot x 1":                                            "--exe and --sysroot are for --core",
		"capture --core x 1":                                               "--core and process ids exclude each other",
		"capture --core x --repeat 2":                                      "--repeat is for processes",
		"capture --core x --timeout 1s":                                    "--timeout is for processes",
		"capture --core x --stats":                                         "--stats is for processes",
		"capture --core x --threads":                                       "--threads is for processes",
		"capture --core x --no-context":                                    "--no-context is for processes",
		"capture --core x --nonstop":                                       "--nonstop is for processes",
		"capture --core x --stop":                                          "--stop is for processes",
		"capture --core x --debuginfod http://127.0.0.1:1":                 "--debuginfod is for processes",
		"capture --core x -D /none":                                        "either -D or --core",
		"capture --stop --nonstop 1":                                       "--stop cannot be used with --nonstop",
		"capture --goroutines --threads 1":                                 "--goroutines goes together neither",
		"capture --pre 1 1":                                                "--pre",
		"capture --post 1 1":                                               "--post",
		"decode --debug-dir /tmp /none":                                    "--debug-dir has no effect without --exe or --pid",
		"history --record-dir /none --limit 3":                             "--limit has no effect without --by or --compare",
		"history --record-dir /none -f csv --query-width 9":                "--query-width has no effect with --format csv",
		"history --record-dir /none -f csv --wide":                         "--wide has no effect with --format csv",
		"memory -f json --wide -D /none":                                   "--wide has no effect with --format json",
		"memory --wide 1":                                                  "--wide has no effect with process ids",
		"memory --allocations --wide 1":                                    "--wide",
		"symbols --json --wide -D /none":                                   "--wide has no effect with --json",
		"waits --trace 1 --wide":                                           "--wide has no effect with --trace",
		"waits --stacks 1/2 --wide 1":                                      "--wide has no effect with --stacks",
		"waits -f csv --wide 1":                                            "--wide has no effect with --format csv",
		"history --record-dir /none --own --pid 1":                         "--own has no effect with --pid",
		"history --record-dir /none -f json --own":                         "--own has no effect with --format json, which has all sessions",
		"history --record-dir /none -f csv --each-sweep":                   "--each-sweep is for the format text",
		"history --record-dir /none --compare -1h --by pid":                "--by pid and --compare exclude each other",
		"history --record-dir /none -f html --by wait":                     "--by and the format html exclude each other",
		"history --record-dir /none -f html --compare -1h":                 "--compare needs the format",
		"history --record-dir /none --cluster 1 -D /none":                  "-D and --cluster exclude each other",
		"incident list --record-dir /none --cluster 1 -D /x":               "-D and --cluster exclude each other",
		"incident show x --record-dir /n --cluster 1 -D /x":                "-D and --cluster exclude each other",
		"incident bundle x -o y --record-dir /n --cluster 1 -D /x":         "-D and --cluster exclude each other",
		"incident take -D /none --record-query-text off --record-redact x": "--record-redact has no effect with --record-query-text off",
		"memory --tree --top 3 1":                                          "--top has no effect with --tree",
		"memory --tree --format json 1":                                    "--tree has no effect with --format json",
		"memory --top 3 --format folded 1":                                 "--top has no effect with --format folded",
		"memory --tree -D /none":                                           "--tree has no effect without process ids",
		"memory --allocations --tree 1":                                    "--tree does not go with --allocations",
		"memory --allocations --timeout 1s 1":                              "--timeout does not go with --allocations",
		"memory --allocations -D /none":                                    "--pgdata does not go with --allocations",
		"memory --allocations -f html --top 3 1":                           "--top has no effect with --format html",
		"memory --allocations --sample-type alloc_space 1":                 "--sample-type has no effect with --format text",
		"memory --allocations -f json --pre 1 1":                           "--pre",
		"memory --allocations --post 1 1":                                  "--post",
		"memory --sample-type alloc_space 1":                               "--sample-type needs --allocations",
		"memory --duration 1s 1":                                           "--duration needs --allocations",
		"memory --max-overhead 1% 1":                                       "--max-overhead needs --allocations",
		"memory --debug-dir /tmp 1":                                        "--debug-dir needs --allocations",
		"memory --debuginfod http://127.0.0.1:1 1":                         "--debuginfod needs --allocations",
		"plan -f json --query-width 9 1":                                   "--query-width has no effect with --format json",
		"plan --connection port=1 1":                                       "--connection needs --calibrate",
		"plan --calibrate --no-calibrate 1":                                "--calibrate and --no-calibrate exclude each other",
		"plan -D /none 1":                                                  "give either -D or process ids",
		"profile --stats -f json 1":                                        "--format has no effect with --stats",
		"profile --stats --top 3 1":                                        "--top has no effect with --stats",
		"profile --stats --group-by user 1":                                "--group-by has no effect with --stats",
		"profile -f html --top 3 1":                                        "--top has no effect with --format html",
		"profile -f pprof --group-by user -o x 1":                          "--group-by has no effect with --format pprof",
		"profile -f json --group-by user 1":                                "--group-by has no effect with --format json",
		"profile -D /none 1":                                               "give either -D or process ids",
		"report x -f html --top 3":                                         "--top has no effect with format html",
		"report x -f pprof --group-by x":                                   "--group-by has no effect with format pprof",
		"report x -f folded --title x":                                     "--title has no effect with format folded",
		"symbols -D /none 1":                                               "give either -D, or process ids and files",
		"symbols --debuginfod off --fetch 1":                               "--fetch needs a debuginfod server",
		"top --format json --width 100 -n 1 -D /none":                      "--width has no effect with --format json",
		"top --width 100 -D /none":                                         "--width has no effect without --batch",
		"top --height 100 -D /none":                                        "--height has no effect without --batch",
		"top --sort age -D /none":                                          "--sort has no effect without --all",
		"top --all --view who":                                             "--view has no effect with --all",
		"top --all --batch --by user":                                      "--by has no effect with --all",
		"top --all --side on-cpu":                                          "--side has no effect with --all",
		"top --batch --by user -D /none":                                   "--by has no effect with --batch, except with --view who",
		"top --batch --side on-cpu -D /none":                               "--side has no effect with --batch, except with --view flame",
		"top -f json --side on-cpu -D /none":                               "--side has no effect with --format json",
		"top --batch --pid 1 --view load -D /none":                         "--view has no effect with --pid",
		"top --connect http://h1 --connect http://h2 --by user":            "--by has no effect with several --connect",
		"top --connect http://h1 -D /none":                                 "--connect does not go with -D",
		"top --connect http://h1 --record-dir /n":                          "--connect does not go with -D and --record-dir",
		"top --all -D /none":                                               "--all does not go with -D",
		"top --all --pid 1":                                                "--all does not go with -D, --pid",
		"top --all --filter user=x":                                        "--all does not go with -D, --pid, --filter",
		"top --all --since -1h":                                            "--since",
		"top --all --at -1h":                                               "--at",
		"top --compare -1h -D /none":                                       "--compare goes with --view who",
		"top --token-file x -D /none":                                      "--token-file goes with --connect",
		"top --until -1h -D /none":                                         "--until needs --since",
		"top -n 3 -D /none":                                                "-n goes with --batch",
		"trace f --count --top 3 1":                                        "--top has no effect with --count",
		"trace f -f json --top 3 1":                                        "--top has no effect with --format json",
		"trace f --count --max-stacks 3 1":                                 "--max-stacks has no effect with --count",
		"trace f --count --max-frames 3 1":                                 "--max-frames has no effect with --count",
		"trace f --count -f html 1":                                        "--count gives no stacks for --format html",
		"trace f -D /none 1":                                               "give either -D or process ids",
		"waits --top 3 1":                                                  "--top has no effect without --stacks",
		"waits --stacks 1/2 -f html --top 3 1":                             "--top has no effect with --format html",
		"waits --idle -f json 1":                                           "--idle has no effect with --format json",
		"waits --idle --trace 1":                                           "--idle, --type and --event go together neither",
		"waits --type IO --trace 1":                                        "--idle, --type and --event go together neither",
		"waits --event WALSync --stacks 1/2 1":                             "--idle, --type and --event go together neither",
		"waits --user x --trace 1":                                         "--user, --database and --query-id go together neither",
		"waits --database x --stacks 1/2 1":                                "--user, --database and --query-id go together neither",
		"waits --query-id 1 -m sampled -D /none":                           "--query-id needs the method exact or blocked",
		"waits --trace 1 -f json":                                          "--trace needs a method that sees single waits, and prints text only",
		"waits --trace 1 -D /none":                                         "--trace names its process",
		"waits --stacks 1/2 -m sampled 1":                                  "--stacks needs --method exact",
		"waits -D /none 1":                                                 "give either -D or process ids",
		"worker -D /none --export-interval 1m":                             "--export-interval has no effect without --export-pyroscope",
		"worker -D /none --export-mode cpu":                                "--export-mode has no effect without --export-pyroscope",
		"worker -D /none --export-header-file x":                           "--export-header-file",
		"worker -D /none --export-spool-dir /x":                            "--export-spool-dir",
		"worker -D /none --export-cluster x":                               "--export-cluster need --export-pyroscope",
		"worker -D /none --listen-host x":                                  "--listen-host",
		"worker -D /none --listen-token-file x":                            "--listen-token-file",
		"worker -D /none --listen-tls-cert x":                              "--listen-tls-cert",
		"worker -D /none --listen-tls-key x":                               "--listen-tls-key need --listen",
		"worker -D /none --max-workers 3":                                  "--max-workers, --below and --uid need --all",
		"worker -D /none --below /x":                                       "--max-workers, --below and --uid need --all",
		"worker -D /none --uid 3":                                          "--max-workers, --below and --uid need --all",
		"worker -D /none --all":                                            "--all and -D exclude each other",
		"worker -D /none --record 1s":                                      "--record needs a directory",
		"worker -D /none --record-keep 1d":                                 "--record-keep has no effect without --record-dir",
		"worker -D /none --record-size 1GB":                                "--record-size has no effect without --record-dir",
		"worker -D /none --record-min-free 1GB":                            "--record-min-free has no effect without --record-dir",
		"worker -D /none --record-query-text all":                          "--record-query-text has no effect without --record-dir",
		"worker -D /none --record-redact x":                                "--record-redact has no effect without --record-dir",
		"worker -D /none --record-stacks off":                              "--record-stacks has no effect without --record-dir",
		"worker -D /none --rules off":                                      "--rules has no effect without --record-dir",
		"worker -D /none --record-dir /x --record off --rules off":         "--rules has no effect with --record off",
	}
}

// effectiveOptions are options that have an effect in each call that is allowed, by the path of the command.
func effectiveOptions() map[string][]string {
	naming := []string{"debug-dir", "debuginfod"}
	return map[string][]string{
		"activity":        {"watch", "format"},
		"capture":         append(naming, "max-frames"),
		"decode":          {"exe", "pid", "heapmap"},
		"doctor":          {"format", "pgdata"},
		"history":         {"record-dir", "since", "until", "format", "output", "pid"},
		"incident list":   {"format", "record-dir"},
		"incident show":   {"format", "record-dir", "output"},
		"incident bundle": {"record-dir", "output"},
		"incident take":   {"pgdata", "output", "record-dir", "record-query-text", "note", "profile"},
		"memory":          {"format", "allocations"},
		"plan":            {"nonstop", "timeout", "format", "watch"},
		"profile": append(naming, "output", "rate", "duration", "max-frames", "running", "stats", "mode", "query-id", "user", "database",
			"backend-type"),
		"report":     {"format", "output", "sample-type"},
		"rules list": {"rules", "format"},
		"symbols":    append(naming, "json"),
		"top":        {"interval", "batch", "format"},
		"trace":      append(naming, "usdt", "duration", "format", "latency", "args", "when", "max-overhead"),
		"waits":      {"duration", "method", "format"},
		"worker": append(naming, "fallback-connection", "spool-dir", "log-level", "log-format", "sessions", "concurrency", "rate", "burst",
			"trace-functions", "no-calibrate", "keep", "keep-rows", "context", "listen", "export-pyroscope", "export-otlp",
			"wait-event-capture", "wait-event-method", "wait-event-budget", "record-dir"),
	}
}

// TestEveryOption runs each call of refusedOptions, and expects an entry for each option of each command: a call in which it has no
// effect is refused, or there is none.
func TestEveryOption(t *testing.T) {
	for _, name := range []string{"PGDATA", "PGHOST", "PGPORT", "STATE_DIRECTORY", "DEBUGINFOD_URLS"} {
		t.Setenv(name, "")
	}
	calls := refusedOptions()
	for _, path := range []string{"capture 1", "memory --allocations 1", "profile 1", "symbols 1", "trace f 1"} {
		for _, option := range cacheOptions() {
			calls[path+" --"+option+" 1GB"] = "--" + option + " has no effect without a server: give --debuginfod URL"
			calls[path+" --debuginfod off --"+option+" 1GB"] = "--" + option + " has no effect without a server"
		}
	}
	refused := map[string]map[string]bool{} // by path and option
	for _, words := range slices.Sorted(maps.Keys(calls)) {
		status, out, errOut := run(t, strings.Fields(words)...)
		if status != exitUsage || out != "" || !strings.Contains(errOut, calls[words]) {
			t.Errorf("%s: status %d, %s%s; want %q", words, status, out, errOut, calls[words])
		}
		cmd, rest, err := newRoot("test").Find(strings.Fields(words))
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err != nil {
			t.Fatalf("%s: %v", words, err)
		}
		path := pathOf(cmd)
		if refused[path] == nil {
			refused[path] = map[string]bool{}
		}
		cmd.Flags().Visit(func(f *pflag.Flag) {
			short := f.Shorthand != "" && strings.Contains(errOut, "-"+f.Shorthand)
			if strings.Contains(errOut, "--"+f.Name) || short {
				refused[path][f.Name] = true
			}
		})
	}
	always := effectiveOptions()
	for _, c := range everyCommand(newRoot("test")) {
		path := pathOf(c)
		c.Flags().VisitAll(func(f *pflag.Flag) {
			known := refused[path][f.Name] || slices.Contains(always[path], f.Name) ||
				path == "worker" && slices.Contains(cacheOptions(), f.Name) // see refuseIgnored
			if !known && f.Name != "help" && !f.Hidden {
				t.Errorf("%s --%s: can it be without an effect? Add a call to refusedOptions, or the option to effectiveOptions", path, f.Name)
			}
		})
		for _, name := range always[path] {
			if c.Flags().Lookup(name) == nil {
				t.Errorf("%s has no option --%s", path, name)
			}
		}
	}
}

// TestEffectiveOptions expects that options beside others are not refused where they have an effect.
func TestEffectiveOptions(t *testing.T) {
	for words, want := range map[string]string{
		"memory --format json --top 3 -D /none":                                        "/none",
		"capture --repeat 2 --interval 1ms 2147483647":                                 "2147483647",
		"activity --tree -f json 2147483647":                                           "2147483647",
		"profile -f speedscope --group-by user 2147483647":                             "2147483647",
		"top --batch --view who --by user -D /none":                                    "/none",
		"top --format json --by user -D /none":                                         "/none",
		"symbols --debuginfod http://127.0.0.1:1 --debuginfod-max-size 1GB 2147483647": "2147483647",
		"capture --debuginfod-max-size 1GB 2147483647":                                 "2147483647",
		"history --record-dir /none --by wait --limit 3":                               "/none",
	} {
		if strings.HasPrefix(words, "capture --debuginfod") {
			t.Setenv("DEBUGINFOD_URLS", "http://127.0.0.1:1")
			t.Setenv("DEBUGINFOD_CACHE_PATH", t.TempDir())
		}
		if status, out, errOut := run(t, strings.Fields(words)...); status == exitOK || status == exitUsage || out != "" || !strings.Contains(errOut, want) {
			t.Errorf("%s: status %d, %s%s; want %q", words, status, out, errOut, want)
		}
	}
}

// pathOf returns the words of a command without the program's name.
func pathOf(c *cobra.Command) string {
	_, path, _ := strings.Cut(c.CommandPath(), " ")
	return path
}

// everyCommand returns the commands that can be run, without those of cobra.
func everyCommand(c *cobra.Command) (list []*cobra.Command) {
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "completion" && sub.Name() != "help" {
			list = append(list, sub)
			list = append(list, everyCommand(sub)...)
		}
	}
	return list
}
