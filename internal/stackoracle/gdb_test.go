package stackoracle

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// debugger is a gdb that runs testdata/frames.py. One gdb serves all tests: it takes seconds to read the symbols of some
// programs and libraries, and reads each only once.
type debugger struct {
	command  *exec.Cmd
	in       io.WriteCloser
	out      *bufio.Reader
	messages *messages
}

// messages is the standard error of a gdb.
type messages struct {
	sync.Mutex
	text bytes.Buffer
}

func (m *messages) Write(data []byte) (int, error) {
	m.Lock()
	defer m.Unlock()
	return m.text.Write(data)
}

// take returns the text since the last call.
func (m *messages) take() string {
	m.Lock()
	defer m.Unlock()
	defer m.text.Reset()
	return m.text.String()
}

var running *debugger

func startGDB() (*debugger, error) {
	command := exec.Command(gdb, "-nx", "-batch", "-iex", "set auto-load off", "-x", filepath.Join("testdata", "frames.py"))
	command.Env = append(os.Environ(), "LC_ALL=C", "DEBUGINFOD_URLS=")
	d := &debugger{command: command, messages: &messages{}}
	command.Stderr = d.messages
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	d.out = bufio.NewReader(out)
	if d.in, err = command.StdinPipe(); err != nil {
		return nil, err
	}
	return d, command.Start()
}

// endGDB ends the gdb of all tests. It also ends if this process does, as its standard input then ends.
func endGDB() {
	if running != nil {
		_ = running.in.Close()
		_ = running.command.Wait()
		running = nil
	}
}

// ask returns the lines that gdb prints for a process.
func (d *debugger) ask(pid int) (lines []string, err error) {
	hangs := time.AfterFunc(toolTimeout, func() { _ = d.command.Process.Kill() })
	defer hangs.Stop()
	if _, err := fmt.Fprintln(d.in, pid); err != nil {
		return nil, err
	}
	for {
		line, err := d.out.ReadString('\n')
		line = strings.TrimSpace(line)
		switch {
		case err != nil:
			return lines, err
		case line == "done":
			return lines, nil
		case strings.HasPrefix(line, "failed "):
			return lines, fmt.Errorf("%s", line)
		}
		lines = append(lines, line)
	}
}

// takeGDB asks gdb for the stacks of a process.
func takeGDB(t *testing.T, pid int) stacks {
	t.Helper()
	if running == nil {
		d, err := startGDB()
		if err != nil {
			t.Fatal(err)
		}
		running = d
	}
	lines, err := running.ask(pid)
	if messages := running.messages.take(); err != nil {
		_ = running.command.Process.Kill()
		endGDB()
		t.Fatalf("gdb of process %d: %v\n%s", pid, err, messages)
	}
	all := stacks{}
	var s *stack
	for _, line := range lines {
		first, rest, _ := strings.Cut(line, " ")
		switch {
		case first == "thread":
			s = &stack{}
			all[int(number(t, rest))] = s
		case s == nil:
		case first == "end":
			s.end = rest
		case strings.HasPrefix(first, "0x"):
			if pc, err := strconv.ParseUint(first, 0, 64); err == nil {
				s.add(pc, rest)
			}
		}
	}
	return all
}
