package cli

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestCaptureCore compares what gcore has of a sleeping process with what a capture of the process itself has: the same
// frames, and in the core's title its name.
func TestCaptureCore(t *testing.T) {
	gcore, err := exec.LookPath("gcore")
	if err != nil {
		t.Skip("no gcore (package gdb)")
	}
	pid := sleeper(t)
	prefix := filepath.Join(t.TempDir(), "core")
	if out, err := exec.CommandContext(t.Context(), gcore, "-o", prefix, pid).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	core := prefix + "." + pid

	_, live, _ := run(t, "capture", pid)
	status, out, stderr := run(t, "capture", "--core", core)
	_, wantFrames, _ := strings.Cut(live, "\n")
	title, frames, _ := strings.Cut(out, "\n")
	if status != 0 || stderr != "" || frames != wantFrames {
		t.Errorf("status %d, %q\nlive\n%s\ncore\n%s", status, stderr, wantFrames, frames)
	}
	if ok, _ := regexp.MatchString(`^core of process `+pid+` \(sleep\), \w+`, title); !ok {
		t.Errorf("title %q", title)
	}

	status, out, _ = run(t, "capture", "--core", core, "--format", "json")
	var doc struct {
		Engine  string `json:"engine"`
		Threads []struct {
			Frames []struct {
				Address string `json:"address"`
			} `json:"frames"`
		} `json:"threads"`
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil || status != 0 || doc.Engine != "core" ||
		len(doc.Threads) != 1 || len(doc.Threads[0].Frames) != strings.Count(frames, "\n") {
		t.Errorf("status %d, %v, %s", status, err, out)
	}

	status, out, stderr = run(t, "symbols", core)
	if status != 1 || out != "" || !strings.Contains(stderr, "capture --core "+core) {
		t.Errorf("symbols of a core: status %d, %q, %q", status, stderr, out)
	}

	_, folded, _ := run(t, "capture", "--format", "folded", pid)
	status, out, stderr = run(t, "capture", "--core", core, "--format", "folded")
	if status != 0 || out != folded || !strings.HasPrefix(out, "sleep;") {
		t.Errorf("folded: status %d, %q\nlive %q\ncore %q", status, stderr, folded, out)
	}

	status, out, stderr = run(t, "capture", "--core", core, "--goroutines")
	if status != 1 || out != "" || !strings.Contains(stderr, "no Go program or library") {
		t.Errorf("goroutines of a program in C: status %d, %q, %q", status, out, stderr)
	}

	status, out, stderr = run(t, "capture", "--core", core, "--exe", "/bin/ls")
	if status != 1 || !strings.Contains(stderr, "not the file of this core") || strings.Contains(out, "ls+0x") {
		t.Errorf("wrong program: status %d, %q\n%s", status, stderr, out)
	}
	if !strings.Contains(out, "libc.so") {
		t.Errorf("the libraries are lost with the program:\n%s", out)
	}
}

// TestCoreInterrupted interrupts the reading of a pipe from which nothing comes.
func TestCoreInterrupted(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }() // ends the reading as well
	stdin := os.Stdin
	os.Stdin = r
	ctx, cancel := context.WithCancel(t.Context())
	reading := make(chan error, 1)
	f := captureFlags{core: coreFlags{file: "-"}}
	go func() {
		_, err := f.readCore(ctx)
		reading <- err
	}()
	if _, err := w.WriteString("\x7f"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Millisecond) // os.Stdin is read by then, or the context is canceled before: both are well
	cancel()
	select {
	case err := <-reading:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	case <-time.After(time.Minute):
		t.Error("an interrupt does not end the reading")
	}
	os.Stdin = stdin
}
