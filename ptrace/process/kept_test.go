package process

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// sleeper starts a program that sleeps, and returns when it does.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	c := exec.Command("sleep", "1000")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(time.Millisecond) {
		if s, err := ReadStatus(c.Process.Pid); err == nil && s.State == 'S' && s.Name == "sleep" {
			return c
		}
		if time.Now().After(deadline) {
			t.Fatal("it does not sleep")
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	names, err := readNames("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// seenOf is what the files of a process say.
type seenOf struct {
	stat         Stat
	status, task Status
	call         Syscall
}

func readAllOf(t *testing.T, pid int) (s seenOf) {
	t.Helper()
	var errs [4]error
	s.stat, errs[0] = ReadStat(pid)
	s.status, errs[1] = ReadStatus(pid)
	s.task, errs[2] = ReadTaskStatus(pid, pid)
	s.call, errs[3] = ReadSyscall(pid, pid)
	s.stat.Processor, s.status.Groups, s.status.NSPID, s.task.Groups, s.task.NSPID = 0, nil, nil, nil, nil
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	return s
}

func same(a, b seenOf) bool {
	return a.stat == b.stat && a.call == b.call && a.status.PID == b.status.PID && a.status.State == b.status.State &&
		a.status.VoluntarySwitches == b.status.VoluntarySwitches && a.task.PID == b.task.PID && a.task.UID == b.task.UID
}

// TestKeptEqual compares what kept descriptors show with the files, before and after a change of the process's state.
func TestKeptEqual(t *testing.T) {
	c := sleeper(t)
	pid, before := c.Process.Pid, descriptors(t)
	want := readAllOf(t, pid)
	k := NewKeeper(10)
	k.Begin([]int{pid})
	for range 3 {
		if got := readAllOf(t, pid); !same(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
		for file := range keptFiles {
			if text, ok := readKept(pid, file); !ok || text == "" {
				t.Errorf("the descriptor of %s is not used", keptNames[file])
			}
		}
	}
	if n := descriptors(t) - before; n != DescriptorsOfKept {
		t.Errorf("%d descriptors, want %d", n, DescriptorsOfKept)
	}
	if err := c.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(time.Millisecond) {
		if s, err := ReadStatus(pid); err == nil && s.State == 'T' {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the stop is not seen")
		}
	}
	held, err := Hold(pid) // another user of the process
	if err != nil {
		t.Fatal(err)
	}
	k.Close()
	if k.Len() != 0 || !held.Lives() {
		t.Errorf("%d processes are kept", k.Len())
	}
	if held.Release(); descriptors(t) != before {
		t.Errorf("%d descriptors, %d before", descriptors(t), before)
	}
}

// TestKeptBounded expects no more processes than the bound, and none that was not used for some rounds.
func TestKeptBounded(t *testing.T) {
	first, second, before := sleeper(t).Process.Pid, sleeper(t).Process.Pid, descriptors(t)
	k := NewKeeper(1)
	defer k.Close()
	k.Begin([]int{first, second})
	if k.Len() != 1 || k.kept[first] == nil {
		t.Errorf("%d processes are kept", k.Len())
	}
	readAllOf(t, second)
	for range keepRounds {
		k.Begin([]int{second})
	}
	if k.kept[first] == nil {
		t.Error("the process is not kept in rounds without it")
	}
	if k.Begin([]int{second}); k.kept[first] != nil || k.kept[second] == nil {
		t.Error("the bound keeps a process that is not used")
	}
	for range keepRounds + 1 {
		k.Begin(nil)
	}
	if k.Len() != 0 || descriptors(t) != before {
		t.Errorf("%d processes, %d descriptors, %d before", k.Len(), descriptors(t), before)
	}
	var none Keeper
	if none.Begin([]int{first}); none.Len() != 0 {
		t.Error("the zero value keeps a process")
	}
}

// TestKeptEnded expects the error of a process that has ended, and then what another process with its id shows.
func TestKeptEnded(t *testing.T) {
	c := sleeper(t)
	pid := c.Process.Pid
	k := NewKeeper(10)
	defer k.Close()
	k.Begin([]int{pid})
	old := readAllOf(t, pid)
	_ = c.Process.Kill()
	_ = c.Wait()
	if _, err := ReadStat(pid); !errors.Is(err, ErrGone) {
		t.Error(err)
	}
	if _, err := ReadStatus(pid); !errors.Is(err, ErrGone) {
		t.Error(err)
	}
	if _, err := ReadSyscall(pid, pid); !errors.Is(err, ErrGone) {
		t.Error(err)
	}
	for range 100 { // other programs start processes too
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0); err != nil {
			t.Skip("no process can get the same id: ", err)
		}
		other := sleeper(t)
		if other.Process.Pid != pid {
			continue
		}
		got := readAllOf(t, pid)
		if got.stat.StartTime < old.stat.StartTime || got.stat.StackStart == old.stat.StackStart || got.status.PID != pid {
			t.Errorf("%+v", got)
		}
		k.Begin([]int{pid})
		if again := readAllOf(t, pid); !same(again, got) || k.Len() != 1 {
			t.Errorf("%+v, want %+v", again, got)
		}
		return
	}
	t.Skip("no process got the same id")
}
