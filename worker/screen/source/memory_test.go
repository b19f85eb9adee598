package source

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/moment"
)

// TestMemoryThatGrows expects a finding for a process that holds a large part of the memory and grows, or a very large part.
func TestMemoryThatGrows(t *testing.T) {
	t.Parallel()
	const mb, all = 1 << 20, 8 << 30
	look := func(sizes ...uint64) []Finding {
		var r rules
		var list []Finding
		for i, size := range sizes {
			m := &moment.Moment{Time: noon.Add(time.Duration(i) * 10 * time.Second), Sessions: []moment.Session{client(1, stateActive, "")}}
			m.Sessions[0].PrivateBytes, m.Sessions[0].Application = size, "batch"
			list = only(r.apply(&facts{m: m, memory: all}), RuleMemory)
		}
		return list
	}
	f := one(t, look(600*mb, 700*mb, 900*mb), RuleMemory)
	want := "PID 1 (batch, active for 1 min) holds 900 MB of private memory, of 8192 MB in all; it grew by 300 MB in 20 s"
	if f.Text != want || f.PID != 1 || f.Severity != Warning || !f.AtLeast || f.Detail != "select 1" || f.Share == nil {
		t.Errorf("%+v, want %q", f, want)
	}
	f = one(t, look(3000*mb, 3000*mb, 2999*mb), RuleMemory)
	if !strings.HasSuffix(f.Text, " holds 2999 MB of private memory, of 8192 MB in all") {
		t.Errorf("%q", f.Text)
	}
	for name, sizes := range map[string][]uint64{
		"does not grow": {900 * mb, 900 * mb, 905 * mb},
		"shrinks":       {600 * mb, 900 * mb, 800 * mb},
		"grew long ago": {400 * mb, 900 * mb, 900 * mb, 900 * mb, 900 * mb, 900 * mb, 900 * mb, 900 * mb},
		"small":         {50 * mb, 100 * mb, 350 * mb},
		"not read":      {0, 0, 0},
		"seen once":     {900 * mb},
	} {
		if list := look(sizes...); len(list) > 0 {
			t.Errorf("%s: %+v", name, list)
		}
	}
	m := &moment.Moment{Time: noon, Sessions: []moment.Session{client(1, stateActive, "")}}
	m.Sessions[0].PrivateBytes = all
	if list := (&rules{}).apply(&facts{m: m}); len(list) > 0 {
		t.Errorf("a host whose memory is not known: %+v", list)
	}
}

// TestMemoryReads expects at most 100 reads in a sample, each of many processes to be read in a few samples, and the largest in each.
func TestMemoryReads(t *testing.T) {
	t.Parallel()
	const many = 1000
	m := &moment.Moment{Time: noon}
	for pid := range many {
		m.Sessions = append(m.Sessions, client(pid+1, stateIdle, ""))
	}
	k := memories{known: map[session]uint64{identityOf(&m.Sessions[700]): 1 << 30}}
	read := map[int]bool{}
	for range 2 + many/(mostMemoryReads-largestReads) {
		chosen := k.choose(m)
		if len(chosen) > mostMemoryReads || !chosen[701] {
			t.Fatalf("%d processes are read, the largest one: %v", len(chosen), chosen[701])
		}
		for pid := range chosen {
			read[pid] = true
		}
	}
	if len(read) != many {
		t.Errorf("%d of %d processes were read", len(read), many)
	}
}

// TestMemoryOfProcesses reads this process and another one, and none of another PID namespace.
func TestMemoryOfProcesses(t *testing.T) {
	t.Parallel()
	other := exec.CommandContext(t.Context(), "sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	m := &moment.Moment{Time: noon, Sessions: []moment.Session{client(os.Getpid(), stateActive, ""), client(other.Process.Pid, stateActive, "")}}
	var k memories
	k.read(m, false)
	if own, small := m.Sessions[0].PrivateBytes, m.Sessions[1].PrivateBytes; own <= small || own < 1<<20 || small == 0 {
		t.Errorf("%d and %d bytes", own, small)
	}
	m.Sessions[0].PrivateBytes, m.Sessions[1].PrivateBytes = 0, 0
	m.Sessions[0].PID++ // the server has another number
	(&memories{}).read(m, true)
	if got := m.Sessions[1].PrivateBytes; got != 0 {
		t.Errorf("a process whose id on this host is not known: %d bytes", got)
	}
	if got := k.limitOf(os.Getpid()); got < 1<<20 {
		t.Errorf("the host has %d bytes", got)
	}
}

// TestStatesOutside expects no state of a process of this host that has the process id of a server in a container.
func TestStatesOutside(t *testing.T) {
	t.Parallel()
	m := &moment.Moment{Time: noon, Sessions: []moment.Session{client(os.Getpid(), stateActive, ""), client(1, stateActive, "")}}
	m.Sessions[1].PID = os.Getpid() // known on this host
	for outside, want := range map[bool]int{false: 2, true: 1} {
		f := &facts{m: m, states: map[int]byte{}, kernel: map[int]string{}}
		f.readStates(m, outside)
		if len(f.states) != want || f.states[1] == 0 || f.unseen != 2-want {
			t.Errorf("outside %t: states %v, %d not read", outside, f.states, f.unseen)
		}
	}
}
