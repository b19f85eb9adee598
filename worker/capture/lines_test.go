package capture_test

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// buildInlined compiles testdata/inlined.c and returns the program.
func buildInlined(t *testing.T, flags ...string) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "inlined")
	command(t, "gcc", append([]string{"-O2", "-g", "-o", exe, "testdata/inlined.c"}, flags...)...)
	return exe
}

// patient makes a capturer that waits for source lines however busy the machine is.
func patient(t *testing.T, cfg capture.Config) *capture.Capturer {
	t.Helper()
	cfg.LinesWait = time.Minute
	c, err := capture.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// places are the frames of the program, as "name file:line [inlined]".
func places(th *backtrace.Thread) []string {
	var out []string
	for i := range th.Frames {
		f := &th.Frames[i]
		if f.Module != "inlined" {
			continue
		}
		s := f.Function
		if f.Line > 0 {
			s += fmt.Sprintf(" %s:%d", path.Base(f.File), f.Line)
		}
		if f.Inlined {
			s += " [inlined]"
		}
		out = append(out, s)
	}
	return out
}

var inlinedStack = []string{
	"inner inlined.c:12 [inlined]", "middle inlined.c:19 [inlined]", "outer inlined.c:27", "main inlined.c:34", "_start",
}

// TestInlinedCalls checks debugging information of all versions, compressed or not, and in separate files.
func TestInlinedCalls(t *testing.T) {
	t.Parallel()
	split := func(t *testing.T, exe string) {
		command(t, "objcopy", "--only-keep-debug", exe, exe+".debug")
		command(t, "strip", exe)
		command(t, "objcopy", "--add-gnu-debuglink="+exe+".debug", exe)
	}
	tests := []struct {
		name  string
		flags []string
		after func(t *testing.T, exe string)
	}{
		{"DWARF 2", []string{"-gdwarf-2"}, nil},
		{"DWARF 4", []string{"-gdwarf-4"}, nil},
		{"DWARF 5", []string{"-gdwarf-5", "-no-pie"}, nil},
		{"zlib", nil, func(t *testing.T, exe string) { command(t, "objcopy", "--compress-debug-sections=zlib", exe) }},
		{"zstd", nil, func(t *testing.T, exe string) { command(t, "objcopy", "--compress-debug-sections=zstd", exe) }},
		{"separate", nil, split},
		{"split, DWARF 4", []string{"-gdwarf-4", "-gsplit-dwarf"}, nil},
		{"split, DWARF 5", []string{"-gdwarf-5", "-gsplit-dwarf"}, split},
		{"dwz", nil, func(t *testing.T, exe string) {
			if _, err := exec.LookPath("dwz"); err != nil {
				t.Skip("dwz is not installed")
			}
			command(t, "cp", exe, exe+".2")
			command(t, "dwz", "-m", exe+".sup", "-M", exe+".sup", exe, exe+".2")
		}},
		{"separate, dwz of DWARF 5", nil, func(t *testing.T, exe string) {
			if _, err := exec.LookPath("dwz"); err != nil {
				t.Skip("dwz is not installed")
			}
			split(t, exe)
			command(t, "cp", exe+".debug", exe+".2")
			command(t, "dwz", "--dwarf-5", "-m", exe+".sup", "-M", exe+".sup", exe+".debug", exe+".2")
			command(t, "objcopy", "--remove-section=.gnu_debuglink", exe)
			command(t, "objcopy", "--add-gnu-debuglink="+exe+".debug", exe)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			exe := buildInlined(t, tt.flags...)
			if tt.after != nil {
				tt.after(t, exe)
			}
			th := take(t, patient(t, capture.Config{}), start(t, exe), capture.Options{})
			if got := places(&th); !slices.Equal(got, inlinedStack) {
				t.Errorf("got  %q\nwant %q", got, inlinedStack)
			}
			checkLevels(t, &th)
		})
	}
}

// checkLevels checks the promises about levels and addresses.
func checkLevels(t *testing.T, th *backtrace.Thread) {
	t.Helper()
	for i := range th.Frames {
		f := &th.Frames[i]
		if f.Level != i {
			t.Errorf("frame %d has level %d", i, f.Level)
		}
		if f.Inlined && (i+1 == len(th.Frames) || th.Frames[i+1].Address != f.Address) {
			t.Errorf("frame %d is inlined in none: %+v", i, f)
		}
	}
}

// TestInlinedCallsWithoutSymbols checks a debug file without a symbol table, so that all names come from debugging
// information.
func TestInlinedCallsWithoutSymbols(t *testing.T) {
	t.Parallel()
	exe := buildInlined(t)
	command(t, "objcopy", "--only-keep-debug", exe, exe+".debug")
	command(t, "objcopy", "--remove-section=.symtab", exe+".debug")
	command(t, "strip", exe)
	command(t, "objcopy", "--add-gnu-debuglink="+exe+".debug", exe)
	th := take(t, patient(t, capture.Config{}), start(t, exe), capture.Options{})
	if got := places(&th); len(got) != 5 || !slices.Equal(got[:4], inlinedStack[:4]) {
		t.Errorf("got  %q\nwant %q", got, inlinedStack[:4])
	}
}

// TestMaxFramesCountsInlinedCalls checks that the frame limit counts inlined calls too.
func TestMaxFramesCountsInlinedCalls(t *testing.T) {
	t.Parallel()
	pid := start(t, buildInlined(t))
	c := patient(t, capture.Config{})
	for limit := 1; limit <= 4; limit++ {
		th := take(t, c, pid, capture.Options{MaxFrames: limit})
		if len(th.Frames) != limit || th.Whole || !strings.Contains(th.Stop, "max_frames") {
			t.Errorf("limit %d: %d frames, %s", limit, len(th.Frames), th.Stop)
		}
	}
}

// TestDebugDirs searches a folder of debug files by build-id that also has a file of another build. That file must be
// reported once and ignored.
func TestDebugDirs(t *testing.T) {
	t.Parallel()
	exe, other := buildInlined(t, "-Wl,--build-id=sha1"), buildInlined(t, "-O0", "-Wl,--build-id=sha1")
	id := buildID(t, exe)
	wrong, right := t.TempDir(), t.TempDir()
	for dir, from := range map[string]string{wrong: other, right: exe} {
		folder := filepath.Join(dir, ".build-id", id[:2])
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		command(t, "objcopy", "--only-keep-debug", from, filepath.Join(folder, id[2:]+".debug"))
	}
	command(t, "strip", exe)
	pid := start(t, exe)
	for _, dirs := range [][]string{{wrong}, {wrong, right}} {
		var mu sync.Mutex
		var told []string
		c := patient(t, capture.Config{DebugDirs: dirs, Report: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, err.Error())
		}})
		take(t, c, pid, capture.Options{})
		th := take(t, c, pid, capture.Options{})
		got := places(&th)
		if len(dirs) == 2 && !slices.Equal(got, inlinedStack) || len(dirs) == 1 && strings.Join(got, "") != "" {
			t.Errorf("with %d folders: %q", len(dirs), got)
		}
		mu.Lock()
		if len(told) != 1 || !strings.Contains(told[0], "another build") || !strings.Contains(told[0], wrong) {
			t.Errorf("with %d folders told %q", len(dirs), told)
		}
		mu.Unlock()
	}
}

func buildID(t *testing.T, exe string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "readelf", "-n", exe).Output()
	if err != nil {
		t.Fatal(err)
	}
	_, id, ok := strings.Cut(string(out), "Build ID: ")
	if !ok {
		t.Fatalf("%s has no build-id", exe)
	}
	return strings.Fields(id)[0]
}

// TestLinesComeLater checks that a capture which cannot wait has no source lines, but all names.
func TestLinesComeLater(t *testing.T) {
	t.Parallel()
	pid := start(t, buildInlined(t))
	c, err := capture.New(capture.Config{LinesWait: 1})
	if err != nil {
		t.Fatal(err)
	}
	th := take(t, c, pid, capture.Options{})
	checkOrder(t, &th, "outer", "main", "_start")
	for deadline := time.Now().Add(3 * time.Minute); ; {
		th = take(t, c, pid, capture.Options{})
		if slices.Equal(places(&th), inlinedStack) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still %q", places(&th))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestConcurrentLines checks that many captures of different processes share the images' information.
func TestConcurrentLines(t *testing.T) {
	t.Parallel()
	exe := buildInlined(t)
	c := patient(t, capture.Config{})
	var wg sync.WaitGroup
	for range 4 {
		pid := start(t, exe)
		wg.Go(func() {
			for range 5 {
				tr, err := c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, capture.Options{Deadline: pgtest.Patience})
				if err != nil {
					t.Errorf("capture: %v", err)
				} else if got := places(&tr.Threads[0]); !slices.Equal(got, inlinedStack) {
					t.Errorf("got %q", got)
				}
			}
		})
	}
	wg.Wait()
}

// TestNeighbourhood checks that a function without a name gets a note with the named functions around it.
func TestNeighbourhood(t *testing.T) {
	t.Parallel()
	exe := build(t, "-rdynamic", "-Dinner=inner", "-fno-toplevel-reorder")
	command(t, "strip", exe)
	th := take(t, capturer(t), start(t, exe), capture.Options{})
	found := 0
	for i := range th.Frames {
		f := &th.Frames[i]
		if f.Module != "nest" || f.Function != "" {
			continue
		}
		if strings.HasPrefix(f.Note, "static, between ") {
			found++
		}
		if f.Name() != "nest" || f.Offset != f.ModuleOffset {
			t.Errorf("frame %+v", f)
		}
	}
	if found == 0 {
		t.Errorf("no frame has its neighbourhood: %+v", th.Frames)
	}
}
