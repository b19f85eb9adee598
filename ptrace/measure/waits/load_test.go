package waits

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// helperVariable makes the test program load and attach the programs, print their ids, and wait to be killed.
const helperVariable = "PGSB_TEST_WAITSBPF_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		serve()
		return
	}
	if os.Getenv(helperVariable) != "" {
		holdPrograms()
	}
	os.Exit(m.Run())
}

func holdPrograms() {
	p, err := loadPrograms(noServer(), atSwitches)
	if err == nil {
		err = p.Attach()
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stdout, "error", err)
		os.Exit(1)
	}
	for _, id := range programIDs(p) {
		_, _ = fmt.Fprint(os.Stdout, id, " ")
	}
	_, _ = fmt.Fprintln(os.Stdout)
	time.Sleep(time.Hour)
	p.Close()
}

// noServer is a server without processes.
func noServer() config { return config{Postmaster: -1, ProcSize: 1, Procs: 1} }

func programIDs(p *programs) (ids []ebpf.ProgramID) {
	for _, program := range p.extra {
		if info, err := program.Info(); err == nil {
			if id, ok := info.ID(); ok {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// needPrograms skips a test on a host that does not let this process load programs.
func needPrograms(t *testing.T, hooks hooks) {
	t.Helper()
	if err := try(hooks, false); errors.Is(err, fs.ErrPermission) || errors.Is(err, errPrograms) {
		t.Skip(err)
	}
}

// TestLoad loads, attaches and detaches the programs of every mechanism that this kernel allows.
func TestLoad(t *testing.T) {
	for hooks, name := range map[hooks]string{atSwitches: "switches", atCalls: "calls", atFunctions: "functions"} {
		t.Run(name, func(t *testing.T) {
			needPrograms(t, hooks)
			p, err := loadPrograms(noServer(), hooks)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if err := p.Attach(); err != nil {
				t.Fatal(err)
			}
			if len(p.links) != len(p.extra) || len(p.links) < 2 {
				t.Errorf("%d links of %d programs", len(p.links), len(p.extra))
			}
			if _, err := p.Counters(); err != nil {
				t.Error(err)
			}
			since := p.kernel.Variables[waitsVarCountedSince]
			var got uint64
			err = since.Set(serverTime() + uint64(time.Hour.Microseconds())) // as after the clock was set back by an hour
			p.followClock()
			if err := errors.Join(err, since.Get(&got)); err != nil || got == 0 || got > serverTime() {
				t.Errorf("statements count from %d, now it is %d: %v", got, serverTime(), err)
			}
		})
	}
}

// TestKilledLoaderLeavesNothing kills a process that has attached programs, and expects that the kernel removes them.
func TestKilledLoaderLeavesNothing(t *testing.T) {
	needPrograms(t, atSwitches)
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), helperVariable+"=1")
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	var ids []ebpf.ProgramID
	for word := range strings.FieldsSeq(line) {
		var id ebpf.ProgramID
		if _, err := fmt.Sscan(word, &id); err != nil {
			t.Fatalf("%s: %s", err, line)
		}
		ids = append(ids, id)
	}
	if err != nil || len(ids) != 2 || !exists(ids[0]) || !exists(ids[1]) {
		t.Fatalf("programs %v, %v", ids, err)
	}
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = command.Wait()
	deadline := time.Now().Add(3 * time.Minute)
	for exists(ids[0]) || exists(ids[1]) {
		if time.Now().After(deadline) {
			t.Fatalf("programs %v have outlived their loader", ids)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func exists(id ebpf.ProgramID) bool {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return false
	}
	_ = program.Close()
	return true
}

// TestSequenceFetched: the compiled programs change the sequence of a slot by instructions that order stores. Such an
// instruction fetches the old value.
func TestSequenceFetched(t *testing.T) {
	t.Parallel()
	spec, err := loadWaits()
	if err != nil {
		t.Fatal(err)
	}
	names := []string{waitsProgSwitched, waitsProgLeft, waitsProgCallLeft, waitsProgEnded}
	count := func(name string, op asm.AtomicOp) (n int) {
		for i := range spec.Programs[name].Instructions {
			if spec.Programs[name].Instructions[i].OpCode.AtomicOp() == op {
				n++
			}
		}
		return n
	}
	all := make(map[string]int)
	for _, name := range names {
		fetching := count(name, asm.FetchAdd)
		if fetching < 2 {
			t.Errorf("%s has %d fetching additions", name, fetching)
		}
		all[name] = fetching + count(name, asm.AddAtomic)
	}
	withoutFetch(spec)
	for _, name := range names {
		if fetching, plain := count(name, asm.FetchAdd), count(name, asm.AddAtomic); fetching != 0 || plain != all[name] {
			t.Errorf("%s has %d fetching and %d plain additions for older kernels", name, fetching, plain)
		}
	}
}

// TestTooManyProcesses expects an error for a server that is too large for the table.
func TestTooManyProcesses(t *testing.T) {
	s := noServer()
	s.Procs = maxSlots + 1
	if _, err := loadPrograms(s, atSwitches); !errors.Is(err, errPrograms) {
		t.Error(err)
	}
}
