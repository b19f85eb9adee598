package hostile

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestEndAfterSignal: each command ends after SIGTERM while it prints a large result that is not read, or while it
// waits for its input.
func TestEndAfterSignal(t *testing.T) {
	onlyFull(t)
	const printing, waiting = true, false
	log := append([]byte("~i#0x0-0x1000000 0x0 - "+strings.Repeat("N", 255)+"\n"), backtraces(t, 0, 2000)...)
	files := map[string][]byte{
		"log": log, "profile": zip(t, func(w io.Writer) { _, _ = w.Write(shared(100, 5000, "function")) }), "core": core(1000),
	}
	for name, c := range map[string]struct {
		prints bool
		file   string
		args   []string
	}{
		"decode": {printing, "log", []string{"decode"}}, "heapmap": {printing, "log", []string{"decode", "--heapmap"}},
		"folded":           {printing, "profile", []string{"report", "-f", "folded", "--group-by", "n"}},
		"html":             {printing, "profile", []string{"report", "-f", "html"}},
		"core":             {printing, "core", []string{"capture", "--core"}},
		"decode of a pipe": {waiting, "-", []string{"decode", "--heapmap"}}, "report of a pipe": {waiting, "-", []string{"report"}},
		"core of a pipe": {waiting, "-", []string{"capture", "--core"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := c.file
			if c.prints {
				file = write(t, c.file, files[c.file])
			}
			cmd := exec.CommandContext(t.Context(), *program, append(c.args, file)...)
			in, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			r, out, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stdin, cmd.Stdout = in, out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			_, _ = in.Close(), out.Close()
			defer func() { _, _ = w.Close(), r.Close() }()
			if c.prints {
				if _, err := io.ReadFull(r, make([]byte, 1)); err != nil {
					t.Error("no result")
				}
			} else {
				fill(t, w)
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			select {
			case err := <-ended:
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.ExitCode() != 1 {
					t.Errorf("the command ends with %v", err)
				}
			case <-time.After(time.Minute):
				_ = cmd.Process.Kill()
				t.Error("the command does not end")
			}
		})
	}
}

// fill writes to a pipe until the command has read it twice: its handler of signals is there then.
func fill(t *testing.T, w *os.File) {
	t.Helper()
	const size = 3 << 16 // a pipe has 1 << 16
	if err := w.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString(strings.Repeat("text\n", size/5)); err != nil {
		t.Fatal(err)
	}
}
