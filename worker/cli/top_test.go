package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/screen/source"
	"pg_stat_backtrace/worker/screen/view"
	"pg_stat_backtrace/worker/serve/spool"
)

// topVariable makes the test's program run the command line in it, with words separated by line ends.
const topVariable = "PGSB_TEST_TOP"

// top runs the command and returns its output.
func top(t *testing.T, arguments ...string) string {
	t.Helper()
	return succeeds(t, append([]string{"top"}, arguments...)...)
}

// TestTop has a session that is idle in transaction and blocks another one, while all connections are in use.
func TestTop(t *testing.T) {
	pgtest.One(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{Conf: []string{
			"max_connections = 5", "superuser_reserved_connections = 0", "max_wal_senders = 0", "autovacuum = off",
		}})
		s.Exec(t, "CREATE TABLE t AS SELECT 1 n")
		holder, waiter := s.Connect(t, s.User, "postgres"), s.Connect(t, s.User, "postgres")
		execute(t, holder, "SET application_name = 'the root'; BEGIN; LOCK TABLE t")
		go func() { _, _ = waiter.PgConn().Exec(t.Context(), "SELECT n FROM t").ReadAll() }()
		pgtest.Wait(t, "a waiter", func() bool { return strings.Contains(activity(t, "-D", s.DataDir), "Lock:relation") })
		fill(t, s)
		pids := [2]int{int(holder.PgConn().PID()), int(waiter.PgConn().PID())}
		t.Run("json", func(t *testing.T) { topData(t, s, pids) })
		t.Run("batch", func(t *testing.T) { topBatch(t, s, pids) })
		t.Run("servers", func(t *testing.T) { topServers(t, s, pids) })
		t.Run("recorder", func(t *testing.T) { topRecorded(t, s, pids) })
		t.Run("terminal", func(t *testing.T) { topTerminal(t, s, holder, pids) })
	})
}

// topData looks at the data of two refreshes.
func topData(t *testing.T, s *pgtest.Server, pids [2]int) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(top(t, "-D", s.DataDir, "--format", "json", "-n", "2", "--interval", "100ms", "--pid", strconv.Itoa(pids[1]))), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines", len(lines))
	}
	var d view.Data
	if err := json.Unmarshal([]byte(lines[1]), &d); err != nil {
		t.Fatal(err)
	}
	if d.Info == nil || d.Info.MaxConnections != 5 || d.Info.Sessions.Clients != 5 || d.Info.Processors < 1 || d.Info.Standby == nil || *d.Info.Standby {
		t.Errorf("info %+v", d.Info)
	}
	if d.Findings == nil || len(d.Findings.Findings) < 2 || !strings.HasPrefix(d.Findings.Findings[0].Text, fmt.Sprintf("PID %d (the root, idle in transaction for ", pids[0])) ||
		!strings.Contains(d.Findings.Findings[0].Text, "blocks 1 session on relation ") || !strings.Contains(d.Findings.Findings[1].Text, "5 of 5 connections are in use") {
		t.Errorf("findings %+v", d.Findings)
	}
	checkMemory(t, &d)
	if d.Load == nil || d.Load.Seconds <= 0 || len(d.Load.Classes) == 0 {
		t.Errorf("load %+v", d.Load)
	}
	if d.Blocking == nil || len(d.Blocking.Nodes) != 2 || d.Blocking.Nodes[1].PID != pids[1] || d.Blocking.Nodes[1].Depth != 1 {
		t.Errorf("blocking %+v", d.Blocking)
	}
	if d.Who == nil || len(d.Who.Rows) == 0 || d.Who.Rows[0].Name != "select n from t" && d.Who.Rows[0].Name != "SELECT n FROM t" {
		t.Errorf("who %+v", d.Who)
	}
	if d.Session == nil || d.Session.Now == nil || d.Stack == nil || len(d.Stack.Frames) < 5 || d.Memory == nil || d.Memory.TotalBytes == 0 {
		t.Errorf("session %+v, stack %+v, memory %+v, errors %v", d.Session, d.Stack, d.Memory, d.Errors)
	}
}

// checkMemory expects the private memory of each session.
func checkMemory(t *testing.T, d *view.Data) {
	t.Helper()
	if d.Sessions == nil || len(d.Sessions.Sessions) < 5 {
		t.Fatalf("sessions %+v", d.Sessions)
	}
	for i := range d.Sessions.Sessions {
		if s := &d.Sessions.Sessions[i]; s.PrivateBytes < 100<<10 || s.PrivateBytes > 1<<30 {
			t.Errorf("process %d has %d bytes", s.ServerPID, s.PrivateBytes)
		}
	}
}

// topRecorded: if a recorder runs, its sweeps are the samples. The screen adds the idle sessions, and shows an earlier moment.
func topRecorded(t *testing.T, s *pgtest.Server, pids [2]int) {
	t.Helper()
	r, dir := recorderOf(t, s)
	if err := r.Sweep(time.Now(), 0); err != nil {
		t.Fatal(err)
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() { // a sweep that is older than some seconds is not of a recorder that runs
		defer close(ended)
		for tick := time.NewTicker(200 * time.Millisecond); ; {
			select {
			case <-end:
				tick.Stop()
				return
			case <-tick.C:
				_ = r.Sweep(time.Now(), 0)
			}
		}
	}()
	defer func() { close(end); <-ended }()
	var d view.Data
	pgtest.Wait(t, "recorded samples only", func() bool {
		d = view.Data{}
		if err := json.Unmarshal([]byte(top(t, "-D", s.DataDir, "--record-dir", dir, "--format", "json", "-n", "1")), &d); err != nil {
			t.Fatal(err)
		}
		if d.Load == nil || d.Info == nil || d.Findings == nil {
			return false
		}
		recorded := d.Load.Seconds > 0
		for i := range d.Load.Columns {
			recorded = recorded && d.Load.Columns[i].Kind != source.KindSampled
		}
		return recorded
	})
	if d.Info.Sessions.Clients != 5 || d.Info.Sessions.Idle == 0 || d.Info.Sessions.Waiting != 1 || d.Info.Error != "" {
		t.Errorf("info %+v", d.Info)
	}
	checkMemory(t, &d)
	if len(d.Findings.Findings) < 2 || d.Findings.Findings[0].PID != pids[0] || !strings.Contains(d.Findings.Findings[1].Text, "5 of 5 connections are in use") {
		t.Errorf("findings %+v", d.Findings)
	}
	// Without the option, the pid file of the worker leads to the directory. Here, this process has the lock of the history.
	stat, err := process.ReadStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	pidFile := filepath.Join(s.DataDir, "pg_stat_backtrace.pid")
	content := fmt.Sprintf("2\n%d\n%d\n%s\ntest\n/nonexistent\n", os.Getpid(), stat.StartTime, s.DataDir)
	if err := os.WriteFile(pidFile, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Remove(pidFile) }()
	if got := console.RecorderDir(s.DataDir); got != dir {
		t.Errorf("the directory of the recorder is %q, want %q", got, dir)
	}
	// A worker that has closed the lock because the disk fails, here the postmaster, says where it records.
	if stat, err = process.ReadStat(s.PostmasterPID()); err != nil {
		t.Fatal(err)
	}
	own := t.TempDir()
	failing := fmt.Sprintf("%d\n%d\n%d\n%s\ntest\n%s\n", spool.Protocol, s.PostmasterPID(), stat.StartTime, s.DataDir, own)
	if err := errors.Join(os.WriteFile(filepath.Join(own, "recorder"), []byte(`{"directory":"/where/it/records"}`), 0o600),
		os.WriteFile(pidFile, []byte(failing), 0o600)); err != nil {
		t.Fatal(err)
	}
	if got := console.RecorderDir(s.DataDir); got != "/where/it/records" {
		t.Errorf("the directory of a recorder that fails is %q", got)
	}
	if err := os.WriteFile(pidFile, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	text := top(t, "-D", s.DataDir, "--batch", "-n", "1", "--view", "blocking", "--since", "-1h")
	if !strings.Contains(text, strconv.Itoa(pids[0])) || !strings.Contains(text, "1 process waits for locks") || !strings.Contains(text, "recorded 2") {
		t.Errorf("an earlier time:\n%s", text)
	}
	text = top(t, "-D", s.DataDir, "--record-dir", dir, "--batch", "-n", "1", "--at", "2001-01-01 03:00")
	if !strings.Contains(text, "the recorder did not run, or could not read the server") || !strings.Contains(text, "nothing is recorded for this moment") {
		t.Errorf("a time without a record:\n%s", text)
	}
}

// topBatch looks at the text.
func topBatch(t *testing.T, s *pgtest.Server, pids [2]int) {
	t.Helper()
	t.Setenv("LC_ALL", "C")
	text := top(t, "-D", s.DataDir, "--batch", "-n", "1", "--view", "blocking", "--width", "90", "--height", "24")
	if !strings.Contains(text, "1 process waits for locks, in 1 tree") || !strings.Contains(text, fmt.Sprintf("`-%d", pids[1])) ||
		strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && (r < ' ' || r > '~') }) {
		t.Errorf("%s", text)
	}
	for arguments, want := range map[string]string{
		"--interval 1ms":                        "--interval must be from",
		"--view fire":                           "--view must be one of",
		"--by color":                            "--by must be one of",
		"--filter user":                         "--filter must be PROPERTY=VALUE",
		"--view session":                        "--view session needs --pid",
		"--pid 0":                               "--pid must be positive",
		"-n 1":                                  "-n goes with --batch",
		"--since soup":                          "is no time: give",
		"--until 03:00":                         "--until needs --since",
		"--since 2020-01-02 --until 2020-01-01": "must begin before it ends",
		"--at 2999-01-01":                       "is in the future",
		"--compare 03:00":                       "--compare goes with --view who",
		"--all --at 03:00":                      "--all does not go with",
		"-D " + s.DataDir:                       "top needs a terminal",
		"--batch -n 1 -D /nonexistent":          "nonexistent",
		"--connect http://h -D /x":              "--connect does not go with -D",
		"--token-file x":                        "--token-file goes with --connect",
		"--batch --connect h:1":                 "--connect must be http://HOST:PORT",
		"--batch --connect http://127.0.0.1:1 --token-file " + s.DataDir: "not a regular file",
		"--batch --connect http://127.0.0.1:1":                           "check that the worker runs with --listen",
		"--batch -n 1 --record-dir / -D " + s.DataDir:                    "history",
	} {
		var stdout, stderr strings.Builder
		if status := Main("test", append([]string{"top"}, strings.Fields(arguments)...), &stdout, &stderr); status == exitOK ||
			!strings.Contains(stderr.String(), want) {
			t.Errorf("%s: status %d, %s%s", arguments, status, stdout.String(), stderr.String())
		}
	}
}

// A pseudoTerminal is a terminal, and the characters that a program has drawn on it.
type pseudoTerminal struct {
	master, slave *os.File
	mu            sync.Mutex
	raw           bytes.Buffer
	cells         [60][200]rune
	x, y          int
	begin         int // of raw that is not drawn yet
	pid           int // of the program that run has started
}

func openTerminal(t *testing.T) *pseudoTerminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminal: %v", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminal: %v", err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	x := &pseudoTerminal{master: master, slave: slave}
	x.size(t, 80, 24)
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := master.Read(buffer)
			if err != nil {
				return
			}
			x.mu.Lock()
			x.raw.Write(buffer[:n])
			x.mu.Unlock()
		}
	}()
	return x
}

func (x *pseudoTerminal) size(t *testing.T, columns, lines uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(x.slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: lines, Col: columns}); err != nil {
		t.Fatal(err)
	}
}

func (x *pseudoTerminal) modes(t *testing.T) unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(x.slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *m
}

func (x *pseudoTerminal) send(t *testing.T, keys string) {
	t.Helper()
	if _, err := x.master.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

// screen draws what the program has written, and returns the lines.
func (x *pseudoTerminal) screen() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	rest := x.raw.Bytes()[x.begin:]
	for len(rest) > 0 {
		n := x.drawOne(rest)
		if n == 0 { // not complete
			break
		}
		rest = rest[n:]
		x.begin += n
	}
	var b strings.Builder
	for y := range x.cells {
		line := strings.TrimRight(strings.ReplaceAll(string(x.cells[y][:]), "\x00", " "), " ")
		b.WriteString(line + "\n")
	}
	return b.String()
}

// drawOne draws a character or obeys an escape sequence, and returns its length.
func (x *pseudoTerminal) drawOne(b []byte) int {
	switch {
	case b[0] == 0x1b && len(b) == 1:
		return 0
	case b[0] == 0x1b && b[1] == '[':
		for i := 2; i < len(b); i++ {
			if b[i] >= '@' && b[i] <= '~' {
				x.obey(string(b[2:i]), b[i])
				return i + 1
			}
		}
		return 0
	case b[0] == 0x1b && b[1] == ']': // until BEL or ESC \
		for i := 2; i < len(b); i++ {
			if b[i] == 7 {
				return i + 1
			}
			if b[i] == '\\' && b[i-1] == 0x1b {
				return i + 1
			}
		}
		return 0
	case b[0] == 0x1b && strings.ContainsRune("()", rune(b[1])):
		return min(3, len(b))
	case b[0] == 0x1b:
		return 2
	case b[0] == '\r':
		x.x = 0
		return 1
	case b[0] == '\n':
		x.y = min(x.y+1, len(x.cells)-1)
		return 1
	case b[0] < ' ':
		return 1
	}
	for size := 1; size <= min(4, len(b)); size++ {
		if r := []rune(string(b[:size])); len(r) == 1 && r[0] != 0xfffd {
			if x.x < len(x.cells[0]) {
				x.cells[x.y][x.x] = r[0]
				x.x++
			}
			return size
		}
	}
	return boolLength(len(b) >= 4)
}

func boolLength(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (x *pseudoTerminal) obey(parameters string, final byte) {
	switch final {
	case 'H':
		line, column := 1, 1
		_, _ = fmt.Sscanf(parameters, "%d;%d", &line, &column)
		x.y, x.x = min(max(line-1, 0), len(x.cells)-1), max(column-1, 0)
	case 'J':
		clear(x.cells[:])
	}
}

// await waits until the screen has a text.
func (x *pseudoTerminal) await(t *testing.T, text string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Log(x.screen())
		}
	}()
	pgtest.Wait(t, fmt.Sprintf("%q on the screen", text), func() bool { return x.shows(text) })
}

// shows reports whether the screen has a text, perhaps on several lines.
func (x *pseudoTerminal) shows(text string) bool {
	screen := x.screen()
	return strings.Contains(screen, text) || strings.Contains(strings.Join(strings.Fields(screen), " "), strings.TrimSpace(text))
}

// has reports whether the program has written these bytes.
func (x *pseudoTerminal) has(bytesWritten string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return bytes.Contains(x.raw.Bytes(), []byte(bytesWritten))
}

// topMeasures runs commands by the keys w and p in the view Session: one is ended, the other one prints a long text.
func topMeasures(t *testing.T, x *pseudoTerminal, pid int) {
	t.Helper()
	x.send(t, "w")
	command := fmt.Sprintf(" waits --trace %d --duration 10s", pid)
	pgtest.Wait(t, "the command, or the wait that goes on", func() bool {
		return x.shows(command) || x.has("Lock:relation goes on for")
	})
	if !x.shows(command) {
		x.send(t, "w")
	}
	x.await(t, command)
	x.await(t, "runs for ")
	x.send(t, "\x03")
	x.await(t, "was ended at ")
	x.send(t, "q")
	x.await(t, "TopMemoryContext")
	x.send(t, "p")
	x.await(t, fmt.Sprintf(" profile --mode wall --duration 10s %d", pid))
	x.await(t, "Time on and off the processor")
	const below = 18                                                 // lines of heading, command, state and notes, with the path of a test program
	largest := regexp.MustCompile(`(100\.0|9\d\.\d) % .*epoll_wait`) // a stop of the waiting session is in the profile too
	defer func() {
		if t.Failed() {
			t.Log(x.screen())
		}
	}()
	pgtest.Wait(t, "the largest part of the profile below the heading", func() bool {
		return slices.ContainsFunc(strings.Split(x.screen(), "\n")[2:below], largest.MatchString)
	})
	x.send(t, "\x1b")
	x.await(t, "TopMemoryContext")
}

// topTerminal sends keys to the command in a terminal, suspends it, ends the server, and quits.
func topTerminal(t *testing.T, s *pgtest.Server, holder *pgx.Conn, pids [2]int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	x := openTerminal(t)
	before := x.modes(t)
	shell := exec.Command("/bin/sh", "-mc", `"$0"; echo "stopped $?"; read x; fg >/dev/null; echo "ended $?"`, exe)
	shell.Env = append(os.Environ(), topVariable+"="+strings.Join([]string{"top", "-D", s.DataDir, "--interval", "200ms"}, "\n"),
		"TERM=xterm-256color", "LC_ALL=C.UTF-8", "NO_COLOR=", "HOME="+filepath.Dir(s.DataDir))
	shell.Stdin, shell.Stdout, shell.Stderr = x.slave, x.slave, x.slave
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- shell.Wait() }()
	t.Cleanup(func() { _ = syscall.Kill(-shell.Process.Pid, syscall.SIGKILL) })

	x.await(t, "(the root, idle in transaction")
	if x.has("\x1b[?1000h") {
		t.Error("the mouse is on at the start")
	}
	x.send(t, "m")
	x.await(t, "The mouse is on")
	var clicked time.Time
	pgtest.Wait(t, "the tree after a double click", func() bool {
		if x.shows("1 process waits for locks, in 1 tree") {
			return true
		}
		isRoot := func(line string) bool { return strings.Contains(line, "(the root, idle in transaction") }
		line := slices.IndexFunc(strings.Split(x.screen(), "\n"), isRoot)
		if line >= 0 && time.Since(clicked) > 5*time.Second { // on a busy machine, half a second may pass between the clicks
			click := fmt.Sprintf("\x1b[<0;10;%dM\x1b[<0;10;%[1]dm", line+1)
			x.send(t, click+click)
			clicked = time.Now()
		}
		return false
	})
	x.send(t, "m1")
	x.await(t, "connections are in use")
	if !x.has("\x1b[?1000l") {
		t.Error("the mouse stays on")
	}
	x.send(t, "\r")
	x.await(t, "1 process waits for locks, in 1 tree")
	x.send(t, "j\r")
	x.await(t, fmt.Sprintf("blocked by %d", pids[0]))
	x.await(t, "#0 ")
	x.send(t, "\t\t")
	x.await(t, "TopMemoryContext")
	x.send(t, "y")
	x.await(t, fmt.Sprintf(" memory %d", pids[1]))
	if !x.has("\x1b]52;c;") {
		t.Error("the command was not sent to the clipboard")
	}
	topMeasures(t, x, pids[1])
	x.size(t, 130, 40)
	x.await(t, "Memory contexts")
	x.await(t, "Plan  ")
	if x.modes(t).Lflag&unix.ICANON != 0 {
		t.Error("the terminal is in the line mode while the screen is shown")
	}
	x.send(t, "\x1a")
	x.await(t, "stopped 1")
	if got := x.modes(t); got != before || !x.has("\x1b[?1049l") {
		t.Errorf("stopped: the terminal has %+v, before %+v", got, before)
	}
	x.send(t, "\n")
	pgtest.Wait(t, "the screen again", func() bool { return x.modes(t).Lflag&unix.ICANON == 0 })
	x.send(t, "1")
	x.await(t, "connections are in use")
	_ = holder // both sessions end with the server
	s.Stop("immediate")
	x.await(t, "the server does not run")
	x.send(t, "q")
	x.await(t, "ended 0")
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := x.modes(t); got != before {
		t.Errorf("ended: the terminal has %+v, before %+v", got, before)
	}
}
