package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// inside is the environment variable that gives a copy of the test binary the id of its target process.
const inside = "FENCE_TEST_TARGET"

func TestMain(m *testing.M) {
	if target, err := strconv.Atoi(os.Getenv(inside)); err == nil {
		if err := behind(target); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(pgtest.RunOr(m, otherProgram, lockMemory))
}

// behind installs the filter, and tries forbidden and permitted calls.
func behind(target int) error {
	runtime.LockOSThread()
	if err := RaiseFence(); err != nil {
		return err
	}
	var errs []error
	for _, number := range forbidden {
		if _, _, errno := unix.RawSyscall6(uintptr(number), 0, 0, 0, 0, 0, 0); errno != unix.EPERM {
			errs = append(errs, fmt.Errorf("system call %d: %w", number, errno))
		}
	}
	errs = append(errs, everyThread(), captured(target), signaled(target), killedAtExit(target), changed(target),
		signaledByFile(target), slowed(target), started(), mapped(), newer(), RaiseFence())
	return errors.Join(errs...)
}

// signaled checks that no signal and no limit reaches another process, although that process belongs to the same user.
// This process can use both for itself.
func signaled(target int) error {
	limit := unix.Rlimit{Cur: 1, Max: 1}
	for name, try := range map[string]func(pid int) error{
		"kill":    func(pid int) error { return unix.Kill(pid, unix.SIGURG) },
		"tgkill":  func(pid int) error { return unix.Tgkill(pid, pid, unix.SIGURG) },
		"prlimit": func(pid int) error { return unix.Prlimit(pid, unix.RLIMIT_CORE, &limit, nil) },
	} {
		if err := try(target); !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("%s of another process: %w", name, err)
		}
		if err := try(unix.Getpid()); err != nil {
			return fmt.Errorf("%s of this process: %w", name, err)
		}
	}
	// Checks for the existence of a process are allowed.
	return errors.Join(unix.Kill(target, 0), unix.Tgkill(target, target, 0),
		unix.Prlimit(0, unix.RLIMIT_CORE, nil, &limit))
}

// killedAtExit checks that a target cannot be seized with an option that kills it at this process's exit. It also
// checks that a target cannot be detached with a signal that kills it.
func killedAtExit(target int) error {
	for _, options := range []uintptr{unix.PTRACE_O_EXITKILL, unix.PTRACE_O_TRACEEXIT, 1 << 40} {
		_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(target), 0, options, 0, 0)
		if errno != unix.EPERM {
			return fmt.Errorf("seize with options %#x: %w", options, errno)
		}
	}
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(target), 0, uintptr(unix.SIGKILL), 0, 0)
	if errno != unix.EPERM {
		return fmt.Errorf("detach with SIGKILL: %w", errno)
	}
	return nil
}

// signaledByFile checks that this process cannot make the kernel send SIGKILL to the owner of a ready file.
func signaledByFile(target int) error {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_NONBLOCK); err != nil {
		return err
	}
	for name, try := range map[string]func() error{
		"F_SETSIG":  func() error { _, err := unix.FcntlInt(uintptr(pipe[0]), setSignal, int(unix.SIGKILL)); return err },
		"F_SETOWN":  func() error { _, err := unix.FcntlInt(uintptr(pipe[0]), setOwner, target); return err },
		"FIOSETOWN": func() error { return unix.IoctlSetPointerInt(pipe[0], fileOwner, target) },
		"TIOCSTI":   func() error { return unix.IoctlSetPointerInt(pipe[0], terminalInput, 'x') },
	} {
		if err := try(); !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	_, err := unix.FcntlInt(uintptr(pipe[0]), unix.F_GETFL, 0)
	return err
}

// slowed checks that this process cannot change how another one is scheduled, and can do so for its own threads.
func slowed(target int) error {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return err
	}
	if err := unix.SchedSetaffinity(target, &all); !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("sched_setaffinity of another process: %w", err)
	}
	batch := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_BATCH}
	if err := unix.SchedSetAttr(target, &batch, 0); !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("sched_setattr of another process: %w", err)
	}
	return errors.Join(unix.SchedSetaffinity(0, &all), unix.SchedSetAttr(0, &batch, 0))
}

// started checks that this process cannot make a process, also not in a new user namespace, and can make threads.
func started() error {
	for _, flags := range []uintptr{uintptr(unix.SIGCHLD), unix.CLONE_NEWUSER, unix.CLONE_VM | unix.CLONE_VFORK, 1 << 40} {
		arguments := [2]uintptr{flags, 0}
		if machines[runtime.GOARCH].cloneFlags == 1 {
			arguments = [2]uintptr{0, flags}
		}
		pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, arguments[0], arguments[1], 0, 0, 0, 0)
		if pid == 0 && errno == 0 {
			unix.Exit(0) // the child
		}
		if errno != unix.EPERM {
			return fmt.Errorf("clone with flags %#x: %w", flags, errno)
		}
	}
	for range 4 { // each of the locked threads needs another one
		done := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(done)
		}()
		<-done
	}
	return nil
}

// mapped checks that this process cannot map code, unless its C library needs that.
func mapped() error {
	memory, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil || loadsLibraries {
		return err
	}
	if err := unix.Mprotect(memory, unix.PROT_READ|unix.PROT_EXEC); !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("mprotect with PROT_EXEC: %w", err)
	}
	return unix.Mprotect(memory, unix.PROT_READ)
}

// newer checks that calls newer than the filter, and calls of x32, look like missing ones.
func newer() error {
	for _, number := range []uintptr{endOfCalls, 521, 545, 1000, 1<<30 | 59, 1<<31 - 1} {
		if _, _, errno := unix.RawSyscall6(number, 0, 0, 0, 0, 0, 0); errno != unix.ENOSYS {
			return fmt.Errorf("system call %d: %w", number, errno)
		}
	}
	return nil
}

// everyThread checks that all threads of the process have the filter.
func everyThread() error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range threads {
		status, err := os.ReadFile("/proc/self/task/" + t.Name() + "/status")
		if err == nil && (!strings.Contains(string(status), "\nSeccomp:\t2\n") ||
			!strings.Contains(string(status), "\nNoNewPrivs:\t1\n")) {
			return fmt.Errorf("thread %s has no filter, or no no_new_privs", t.Name())
		}
	}
	return nil
}

// captured checks that a capture still works.
func captured(target int) error {
	s, err := ptrace.Capture(context.Background(), process.Target{PID: target, UID: -1}, snapshot.Options{})
	if err == nil && (s.Engine != snapshot.EngineStop || len(s.Threads[0].Registers) == 0 ||
		len(s.Threads[0].Stack.Data) == 0) {
		return fmt.Errorf("captured by %s: %+v", s.Engine, s.Threads)
	}
	return err
}

// changed tries every ptrace request on a traced process. Only requests that read may succeed.
func changed(target int) error {
	if err := unix.PtraceSeize(target); err != nil {
		return err
	}
	if err := unix.PtraceInterrupt(target); err != nil {
		return err
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(target, &status, unix.WALL, nil); err != nil {
		return err
	}
	var word [64]byte
	vector := unix.Iovec{Base: &word[0], Len: uint64(len(word))}
	for _, request := range []uintptr{
		unix.PTRACE_POKETEXT, unix.PTRACE_POKEDATA, unix.PTRACE_POKEUSR, unix.PTRACE_SETREGSET, unix.PTRACE_SETOPTIONS,
		unix.PTRACE_CONT, unix.PTRACE_KILL, unix.PTRACE_ATTACH, unix.PTRACE_TRACEME, unix.PTRACE_SYSCALL,
		unix.PTRACE_SINGLESTEP, unix.PTRACE_SETSIGINFO, unix.PTRACE_SETSIGMASK,
	} {
		_, _, errno := unix.Syscall6(unix.SYS_PTRACE, request, uintptr(target), 1, uintptr(unsafe.Pointer(&vector)), 0, 0)
		if errno != unix.EPERM {
			return fmt.Errorf("ptrace request %#x: %w", request, errno)
		}
	}
	return unix.PtraceDetach(target)
}

// TestFence runs a copy of the test binary behind the fence, with a process to capture.
func TestFence(t *testing.T) {
	sleeper := exec.Command("sleep", "1000")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), self)
	c.Env = append(os.Environ(), inside+"="+strconv.Itoa(sleeper.Process.Pid))
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// calledAt returns arguments of which one is set.
func calledAt(argument uint32, value uint64) (arguments [4]uint64) {
	arguments[argument] = value
	return arguments
}

// filterCase is a system call, and whether the filter allows it.
type filterCase struct {
	what      string
	audit     uint32
	number    uint32
	arguments [4]uint64
	allowed   bool
}

// filterCases returns system calls of process own on a machine.
func filterCases(own uint64, m machine) []filterCase {
	return []filterCase{
		{"read", m.audit, unix.SYS_READ, [4]uint64{}, true},
		{"another convention", m.audit + 1, unix.SYS_READ, [4]uint64{}, false},
		{"execve", m.audit, unix.SYS_EXECVE, [4]uint64{}, false},
		{"the first", m.audit, forbidden[0], [4]uint64{}, false},
		{"the last", m.audit, forbidden[len(forbidden)-1], [4]uint64{}, false},
		{"seize", m.audit, unix.SYS_PTRACE, [4]uint64{unix.PTRACE_SEIZE, 1}, true},
		{"seize with exec stops", m.audit, unix.SYS_PTRACE, [4]uint64{unix.PTRACE_SEIZE, 1, 0, unix.PTRACE_O_TRACEEXEC}, true},
		{"seize with an option", m.audit, unix.SYS_PTRACE, [4]uint64{unix.PTRACE_SEIZE, 1, 0, 1 << 20}, false},
		{"seize with a high option", m.audit, unix.SYS_PTRACE, [4]uint64{unix.PTRACE_SEIZE, 1, 0, 1 << 32}, false},
		{"interrupt", m.audit, unix.SYS_PTRACE, [4]uint64{unix.PTRACE_INTERRUPT, 1}, true},
		{"read registers", m.audit, unix.SYS_PTRACE, [4]uint64{unix.PTRACE_GETREGSET, 1, 1, 1 << 40}, true},
		{"detach", m.audit, unix.SYS_PTRACE, [4]uint64{unix.PTRACE_DETACH, 1}, true},
		{"detach with a signal", m.audit, unix.SYS_PTRACE, [4]uint64{unix.PTRACE_DETACH, 1, 0, 10}, true},
		{"detach with SIGKILL", m.audit, unix.SYS_PTRACE, [4]uint64{unix.PTRACE_DETACH, 1, 0, 9}, false},
		{"write a word", m.audit, unix.SYS_PTRACE, [4]uint64{unix.PTRACE_POKEDATA, 1}, false},
		{"kill itself", m.audit, unix.SYS_KILL, [4]uint64{own, 9}, true},
		{"kill another", m.audit, unix.SYS_KILL, [4]uint64{1, 9}, false},
		{"kill all", m.audit, unix.SYS_KILL, [4]uint64{1<<64 - 1, 9}, false},
		{"look for another", m.audit, unix.SYS_KILL, [4]uint64{1, 0}, true},
		{"signal to an own thread", m.audit, unix.SYS_TGKILL, [4]uint64{own, 5, 23}, true},
		{"signal to another's thread", m.audit, unix.SYS_TGKILL, [4]uint64{1, 5, 23}, false},
		{"limit of its own", m.audit, unix.SYS_PRLIMIT64, [4]uint64{0, 7, 1, 1}, true},
		{"limit of another", m.audit, unix.SYS_PRLIMIT64, [4]uint64{1, 0, 1, 0}, false},
		{"x32", m.audit, unix.SYS_READ | 0x4000_0000, [4]uint64{}, false},
		{"ptrace of x32", m.audit, 521, [4]uint64{}, false},
		{"newer", m.audit, endOfCalls, [4]uint64{}, false},
		{"thread", m.audit, unix.SYS_CLONE, calledAt(m.cloneFlags, 0x50f00), true},
		{"process", m.audit, unix.SYS_CLONE, calledAt(m.cloneFlags, uint64(unix.SIGCHLD)), false},
		{"namespace", m.audit, unix.SYS_CLONE, calledAt(m.cloneFlags, 0x50f00|unix.CLONE_NEWUSER), false},
		{"clone3", m.audit, unix.SYS_CLONE3, [4]uint64{}, false},
		{"duplicate", m.audit, unix.SYS_FCNTL, [4]uint64{3, unix.F_DUPFD_CLOEXEC}, true},
		{"owner of a file", m.audit, unix.SYS_FCNTL, [4]uint64{3, setOwner, 1}, false},
		{"owner by a structure", m.audit, unix.SYS_FCNTL, [4]uint64{3, setOwnerEx, 1}, false},
		{"signal of a file", m.audit, unix.SYS_FCNTL, [4]uint64{3, setSignal | 1<<32, 9}, false},
		{"owner of a socket", m.audit, unix.SYS_IOCTL, [4]uint64{3, socketOwner, 1}, false},
		{"input of a terminal", m.audit, unix.SYS_IOCTL, [4]uint64{0, terminalInput | 1<<32, 1}, false},
		{"size of a terminal", m.audit, unix.SYS_IOCTL, [4]uint64{0, 0x5413, 1}, true},
		{"no new privileges", m.audit, unix.SYS_PRCTL, [4]uint64{unix.PR_SET_NO_NEW_PRIVS, 1}, true},
		{"tracer", m.audit, unix.SYS_PRCTL, [4]uint64{unix.PR_SET_PTRACER, 1}, false},
		{"core scheduling", m.audit, unix.SYS_PRCTL, [4]uint64{unix.PR_SCHED_CORE, 1, 1}, false},
		{"own priority", m.audit, unix.SYS_SCHED_SETSCHEDULER, [4]uint64{0, 1}, true},
		{"priority of another", m.audit, unix.SYS_SCHED_SETSCHEDULER, [4]uint64{1, 1}, false},
		{"processors of another", m.audit, unix.SYS_SCHED_SETAFFINITY, [4]uint64{1, 8, 1}, false},
		{"socket", m.audit, unix.SYS_SOCKET, [4]uint64{unix.AF_INET6, 1}, true},
		{"packets", m.audit, unix.SYS_SOCKET, [4]uint64{unix.AF_PACKET, 1}, false},
		{"kernel cryptography", m.audit, unix.SYS_SOCKET, [4]uint64{unix.AF_ALG, 1}, false},
		{"virtual machine", m.audit, unix.SYS_SOCKET, [4]uint64{unix.AF_VSOCK, 1}, false},
		{"memory", m.audit, unix.SYS_MPROTECT, [4]uint64{0, 4096, unix.PROT_READ | unix.PROT_WRITE}, true},
		{"code", m.audit, unix.SYS_MPROTECT, [4]uint64{0, 4096, unix.PROT_READ | unix.PROT_EXEC}, loadsLibraries},
		{"map code", m.audit, unix.SYS_MMAP, [4]uint64{0, 4096, unix.PROT_EXEC}, loadsLibraries || m.mmapByPointer},
	}
}

// TestFilters runs the program of each architecture as the kernel would.
func TestFilters(t *testing.T) {
	const own = 4711
	for name, m := range machines {
		for _, c := range []struct {
			number   uint32
			argument uint64
		}{{unix.SYS_LISTEN, 3}, {m.socketCall, 4}} {
			if c.number == 0 {
				continue
			}
			data := map[uint32]uint32{numberAt: c.number, auditAt: m.audit, argumentAt + m.low: uint32(c.argument)}
			if got := verdict(t, m.filter(own, nil), data); got == unix.SECCOMP_RET_ALLOW {
				t.Errorf("%s: listening is allowed", name)
			}
			if got := verdict(t, m.filter(own, []uint32{unix.SYS_LISTEN}), data); got != unix.SECCOMP_RET_ALLOW {
				t.Errorf("%s: listening is refused although it is wanted: %#x", name, got)
			}
		}
		p := m.filter(own, nil)
		for _, c := range filterCases(own, m) {
			data := map[uint32]uint32{numberAt: c.number, auditAt: c.audit}
			for i, value := range c.arguments {
				offset := argumentAt + 8*uint32(i)
				data[offset+m.low], data[offset+4-m.low] = uint32(value), uint32(value>>32)
			}
			if got := verdict(t, p, data); (got == unix.SECCOMP_RET_ALLOW) != c.allowed {
				t.Errorf("%s, %s: %#x", name, c.what, got)
			}
		}
	}
}

// verdict interprets a filter.
func verdict(t *testing.T, p []unix.SockFilter, data map[uint32]uint32) uint32 {
	t.Helper()
	accumulator := uint32(0)
	for at := 0; at < len(p); at++ {
		i := p[at]
		holds := false
		switch i.Code {
		case load:
			value, known := data[i.K]
			if !known {
				t.Fatalf("instruction %d loads from %d", at, i.K)
			}
			accumulator = value
			continue
		case returning:
			return i.K
		case ifEqual:
			holds = accumulator == i.K
		case ifAnyBit:
			holds = accumulator&i.K != 0
		case ifAtLeast:
			holds = accumulator >= i.K
		default:
			t.Fatalf("instruction %d is %#x", at, i.Code)
		}
		if holds {
			at += int(i.Jt)
		} else {
			at += int(i.Jf)
		}
	}
	t.Fatal("the filter has no end")
	return 0
}
