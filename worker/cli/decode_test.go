package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// decodeInput runs decode with a text as the standard input.
func decodeInput(t *testing.T, input string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, []byte(input), 0o600); err != nil {
		t.Fatal(err)
	}
	return run(t, append(append([]string{"decode"}, args...), file)...)
}

// TestDecodeLog: backtraces are found wherever they stand in a log; what is damaged is reported with its place, and the
// rest is decoded.
func TestDecodeLog(t *testing.T) {
	const line, decoded = "~m#IF0BmUQugNCkgCnkhdAYpQa6wAAV", "~b#size: 7520, 0x406651 0x406852 0x406c1b 0x406294 \n"
	status, out, stderr := decodeInput(t, "[2026/11/26 20:00:00] N: "+line+" and "+line+"\n"+
		"a line of text\n\nEND\nCheckpointer\nCAUCgAAG\n"+strings.TrimPrefix(line, "~m#")+"\r\n~m#ABAABA==")
	want := decoded + decoded + "~b#size: 1, 0x1 \n" + decoded + "~b#size: 0, \n"
	if status != 0 || out != want || stderr != "" {
		t.Errorf("status %d, %q\n%s\nwant\n%s", status, stderr, out, want)
	}

	status, out, stderr = decodeInput(t, "first\nN: ~m#IF0BmUQ\n"+line+"\n")
	if status != 1 || out != decoded || !strings.Contains(stderr, "line 2, column 4: not a compressed backtrace: ") {
		t.Errorf("status %d, %q, %q", status, stderr, out)
	}

	long := strings.Repeat("x", maxLogLine) + line
	status, out, stderr = decodeInput(t, long+"\n"+line)
	if status != 0 || out != decoded || !strings.Contains(stderr, "1 line is longer than 1048576 bytes") {
		t.Errorf("a long line: status %d, %q, %q", status, stderr, out)
	}

	status, _, stderr = decodeInput(t, "nothing\n")
	if status != 1 || !strings.Contains(stderr, "no compressed backtrace") {
		t.Errorf("nothing to decode: status %d, %q", status, stderr)
	}
}

// TestDecodeHeapMap adds up what has the same stack.
func TestDecodeHeapMap(t *testing.T) {
	small, large := "~m#CAUCgAAG\n", "~m#GCUACyAAAASgA5AAAAAP\n"
	status, out, _ := decodeInput(t, small+large+small, "--heapmap")
	want := "8192 bytes in 1 allocation\n0x100 0x200000 0x100 \n\n2 bytes in 2 allocations\n0x1 \n\n" +
		"# Total instrumented allocation 8194\n"
	if status != 0 || out != want {
		t.Errorf("status %d\n%s\nwant\n%s", status, out, want)
	}
}

// TestCaptureCompressed: a stack that is captured compressed and decoded has the names and lines of the stack itself.
func TestCaptureCompressed(t *testing.T) {
	pid := sleeper(t)
	_, text, _ := run(t, "capture", pid)
	asleep(t, pid)
	status, packed, stderr := run(t, "capture", "--format", "compressed", pid)
	if status != 0 || stderr != "" || !strings.HasPrefix(packed, "~i#0x0-0x1000000 0x0 ") {
		t.Fatalf("status %d, %q\n%s", status, stderr, packed)
	}
	names := func(s string) string { // without the addresses, which are the image's in the decoded stack
		return strings.Join(regexp.MustCompile(`(?m) in .*$`).FindAllString(s, -1), "\n")
	}
	status, out, stderr := decodeInput(t, packed, "--pid", pid)
	if status != 0 || stderr != "" || names(out) != names(text) || names(text) == "" {
		t.Errorf("status %d, %q\n%s\nwant the names of\n%s", status, stderr, out, text)
	}

	// Without the program's own frames nothing of it can be named by its file.
	exe, err := os.Readlink("/proc/" + pid + "/exe")
	if err != nil {
		t.Fatal(err)
	}
	_, out, _ = decodeInput(t, packed, "--exe", exe)
	if !strings.Contains(out, "in libc.so.6+0x") || strings.Count(names(out), "\n") != strings.Count(names(text), "\n") {
		t.Errorf("by the program's file alone:\n%s", out)
	}

	asleep(t, pid)
	_, snipped, _ := run(t, "capture", "--format", "compressed", "--pre", "1", "--post", "2", pid)
	_, out, _ = decodeInput(t, snipped, "--pid", pid)
	all := strings.Split(names(text), "\n")
	if want := strings.Join(all[1:len(all)-2], "\n"); names(out) != want {
		t.Errorf("snipped:\n%s\nwant\n%s", names(out), want)
	}
	if status, _, stderr = run(t, "capture", "--pre", "1", pid); status != 2 || !strings.Contains(stderr, "require") {
		t.Errorf("--pre without the format: status %d, %q", status, stderr)
	}
}

// TestCompressedLeavesOut: the frames for which the format has no room are counted.
func TestCompressedLeavesOut(t *testing.T) {
	var f console.CompressedFlags
	var out bytes.Buffer
	if err := f.Write(&out, deepTrace(40)); err != nil {
		t.Fatal(err)
	}
	if want := "~t#pid=7 tid=7 exact=0,3,4 left_out=9 incomplete\n"; !strings.Contains(out.String(), want) {
		t.Errorf("%s\nhas no line %s", out.String(), want)
	}
	var d bytes.Buffer
	flags := decodeFlags{}
	if err := flags.run(bytes.NewReader(out.Bytes()), &d, &d); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(d.String(), " 0x40"); got != 31 {
		t.Errorf("%d levels\n%s", got, d.String())
	}
	if want := fmt.Sprintf("0x%x ", 0x400000+30); !strings.HasSuffix(strings.TrimSpace(d.String())+" ", want) {
		t.Errorf("the last level is not the 31st:\n%s", d.String())
	}
}

// deepTrace is a stack of so many frames, one of which a signal has interrupted, that does not reach the stack's end.
func deepTrace(frames int) *backtrace.Trace {
	th := backtrace.Thread{TID: 7}
	for i := range frames {
		f := backtrace.Frame{Level: i, Module: "program", BuildID: "aa", ModuleOffset: 0x400000 + uint64(i)}
		if i == 3 {
			f.Note = "signal handler called"
		}
		th.Frames = append(th.Frames, f, backtrace.Frame{Inlined: true, Module: "program", ModuleOffset: f.ModuleOffset})
	}
	return &backtrace.Trace{PID: 7, Threads: []backtrace.Thread{th}}
}

// TestDecodeHostileLines: lines that are repeated drive no terminal.
func TestDecodeHostileLines(t *testing.T) {
	t.Parallel()
	const tricks = "\x1b]0;x\a\u202e"
	path := filepath.Join(t.TempDir(), "log")
	text := "~i#0x0-0x1000000 0x0 abcd name" + tricks + "\n~t#pid=7 tid=7" + tricks +
		"\n~m#IF0BmUQugNCkgCnkhdAYpQa6wAAV\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr := run(t, "decode", path)
	hostile := strings.ContainsAny(stdout+stderr, "\x1b\a\u202e")
	if status != exitOK || hostile || !strings.Contains(stdout, "~t#pid=7 tid=7") {
		t.Errorf("status %d, %q, %q", status, stdout, stderr)
	}
}

// TestDecodeLongName: a window whose image has a longer name than any file is refused.
func TestDecodeLongName(t *testing.T) {
	status, _, stderr := decodeInput(t, "~i#0x0-0x1000000 0x0 - "+strings.Repeat("N", 256)+"\n~m#IF0BmUQugNCkgCnkhdAYpQa6wAAV\n")
	if status != 1 || !strings.Contains(stderr, "a name of more than 255 bytes") {
		t.Errorf("status %d, %s", status, stderr)
	}
}
