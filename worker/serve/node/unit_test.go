package node

import (
	"context"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
)

// Variables of the process in which TestStubbornUnderUnit runs a supervisor.
const (
	envUnitServer = "PGSB_TEST_UNIT_SERVER" // the data directory of the server
	envUnitBound  = "PGSB_TEST_UNIT_BOUND"  // the process has the capabilities of the unit
)

// TestStubbornUnderUnit is TestStubborn with the capabilities that the unit for all servers gives, and a worker of another user.
func TestStubbornUnderUnit(t *testing.T) {
	if dataDir := os.Getenv(envUnitServer); dataDir != "" {
		superviseUnderUnit(t, dataDir)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can start a worker of another user")
	}
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
	visible(t, s)
	log := &journal{}
	child := exec.Command("/proc/self/exe", "-test.run=^TestStubbornUnderUnit$")
	child.Env = append(os.Environ(), envUnitServer+"="+s.DataDir)
	child.Stdout, child.Stderr = log, log
	input, err := child.StdinPipe() // the supervisor ends with it
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		log.mu.Lock()
		worker := regexp.MustCompile(`"worker":(\d+)`).FindSubmatch(log.text.Bytes())
		log.mu.Unlock()
		if worker != nil && log.count("killing it") == 0 {
			if pid, err := strconv.Atoi(string(worker[1])); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		_ = input.Close()
		if err := child.Wait(); err != nil {
			t.Error(err, log.text.String())
		}
	})
	pgtest.Wait(t, "a worker", func() bool { return log.count("started a worker") == 1 })
	s.Stop("fast")
	pgtest.Wait(t, "its end", func() bool { return log.count("killing it")+log.count("does not end") > 0 })
	if log.count("killing it") == 0 {
		t.Error("the supervisor could not kill the worker")
	}
}

// superviseUnderUnit runs a supervisor with the capabilities of the unit until the end of standard input.
func superviseUnderUnit(t *testing.T, dataDir string) {
	t.Helper()
	if os.Getenv(envUnitBound) == "" {
		bindCapabilities(t)
		t.Fatal(syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), envUnitBound+"=1")))
	}
	signal.Ignore(syscall.SIGPIPE)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	const nobody = 65534
	err := Run(ctx, Config{
		Log: zerolog.New(os.Stderr), Below: []string{dataDir}, Interval: 50 * time.Millisecond, Grace: 100 * time.Millisecond,
		Command: func(string, int, int, *os.File) *exec.Cmd {
			command := exec.Command("sleep", "600")
			command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			return command
		},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// bindCapabilities removes from the bounding set of this thread each capability that the unit does not give.
func bindCapabilities(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile("../../../systemd/pg_stat_backtrace-all.service")
	if err != nil {
		t.Fatal(err)
	}
	given := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`).FindSubmatch(text)
	if given == nil {
		t.Fatal("the unit bounds no capabilities")
	}
	numbers := map[string]uintptr{
		"CAP_SYS_PTRACE": unix.CAP_SYS_PTRACE, "CAP_PERFMON": unix.CAP_PERFMON, "CAP_DAC_READ_SEARCH": unix.CAP_DAC_READ_SEARCH,
		"CAP_SETUID": unix.CAP_SETUID, "CAP_SETGID": unix.CAP_SETGID, "CAP_SETPCAP": unix.CAP_SETPCAP, "CAP_CHOWN": unix.CAP_CHOWN,
		"CAP_KILL": unix.CAP_KILL,
	}
	var keep []uintptr
	for name := range strings.FieldsSeq(string(given[1])) {
		number, ok := numbers[name]
		if !ok {
			t.Fatal("unknown capability", name)
		}
		keep = append(keep, number)
	}
	runtime.LockOSThread() // until execve
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if !slices.Contains(keep, c) {
			_ = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0) // an error if the kernel does not know it
		}
	}
}
