//go:build amd64 || arm64

package probe

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/btf"
)

// probedCall is the function that the tests probe. It has two arguments in Go's registers: an integer and a string. Its
// first instruction must not run twice for a call, as the check of the stack does when the scheduler wants the
// processor.
//
//go:noinline
//go:nosplit
//go:norace
func probedCall(n int, text string) { passed += n + len(text) }

var passed int

// siteOf finds the first instruction of probedCall in the file of this program.
func siteOf(t testing.TB) Site {
	t.Helper()
	file, err := elf.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	addr := uint64(reflect.ValueOf(probedCall).Pointer())
	for _, p := range file.Progs {
		if p.Type == elf.PT_LOAD && addr >= p.Vaddr && addr < p.Vaddr+p.Filesz {
			return Site{Offset: addr - p.Vaddr + p.Off}
		}
	}
	t.Skip("this program is position-independent")
	return Site{}
}

// attach loads a probe of probedCall and attaches it to this process.
func attach(t *testing.T, probe Probe) *Programs {
	t.Helper()
	p, err := Load(Config{Probes: []Probe{probe}})
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrUnsupported) {
		t.Skipf("this host cannot run the programs: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	p.SetBudget(1<<30, 1)
	link, err := p.Attach("/proc/self/exe", os.Getpid(), []Site{siteOf(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(link.Close)
	return p
}

func figuresOf(t *testing.T, p *Programs) (sum Figures) {
	t.Helper()
	all, err := p.Figures()
	if err != nil {
		t.Fatal(err)
	}
	for key, f := range all {
		if key.Process.PID != os.Getpid() && f != (Figures{}) {
			t.Errorf("hits of another process: %+v: %+v", key, f)
		}
		sum.Add(f)
	}
	return sum
}

func hitsOf(p *Programs) (hits []Hit) {
	var h Hit
	for p.Next(time.Now().Add(20*time.Millisecond), &h) {
		one := h
		one.Strings = append([]string(nil), h.Strings...)
		one.Stack = append([]byte(nil), h.Stack...)
		hits = append(hits, one)
		h.Registers = nil
	}
	return hits
}

func TestEveryHitCounted(t *testing.T) {
	p := attach(t, Probe{})
	const n = 5000
	for i := range n {
		probedCall(i, "")
	}
	if f := figuresOf(t, p); f.Hits != n || f.Stacks+f.Lost+f.Skipped != 0 {
		t.Errorf("%d calls, but %+v", n, f)
	}
}

func TestStacksWithinBudgetAndExactSum(t *testing.T) {
	p := attach(t, Probe{Stack: true, Go: true})
	p.SetBudget(100, 1)
	const n = 1000
	for i := range n {
		probedCall(i, "")
	}
	f := figuresOf(t, p)
	if f.Hits != n || f.Stacks != 100 || f.Stacks+f.Lost+f.Skipped != f.Hits {
		t.Errorf("%d calls and a budget of 100 stacks: %+v", n, f)
	}
	hits := hitsOf(p)
	if len(hits) != int(f.Stacks) {
		t.Errorf("%d stacks arrived of %d", len(hits), f.Stacks)
	}
	for _, h := range hits {
		if h.Process.PID != os.Getpid() || h.UID != os.Getuid() || uint64(len(h.Stack)) != h.Wanted || h.Wanted == 0 {
			t.Fatalf("process %+v, user %d, %d of %d bytes of stack", h.Process, h.UID, len(h.Stack), h.Wanted)
		}
		if at := binary.NativeEndian.Uint64(h.Registers[8*registerSP:]); at != h.StackStart {
			t.Fatalf("stack pointer %#x, but the stack starts at %#x", at, h.StackStart)
		}
	}
}

func TestFullRingCounted(t *testing.T) {
	p := attach(t, Probe{Stack: true, Go: true})
	const n = 20000
	for i := range n {
		probedCall(i, "")
	}
	if f := figuresOf(t, p); f.Lost == 0 || f.Stacks == 0 || f.Stacks+f.Lost != n || f.Hits != n {
		t.Errorf("%d calls without a reader: %+v", n, f)
	}
}

func TestConditionsAndArguments(t *testing.T) {
	number := Argument{Register: registerArguments[0], Size: 8, Signed: true}
	for _, c := range []struct {
		op    Op
		value int64
		want  uint64
	}{
		{Equal, 7, 1}, {NotEqual, 7, 99}, {Less, 0, 50}, {LessEqual, 0, 51}, {Greater, 0, 49}, {GreaterEqual, 0, 50},
		{And, 1, 50},
	} {
		p := attach(t, Probe{
			Arguments: []Argument{number, {Register: registerArguments[1], Size: 8, String: true, Length: 3},
				{Register: registerArguments[2], Size: 8}},
			Conditions: []Condition{{What: number, Op: c.op, Signed: true, Value: uint64(c.value)}},
		})
		text := strings.Repeat("x", 100)
		for i := -50; i < 50; i++ {
			probedCall(i, text[:i+50])
		}
		f := figuresOf(t, p)
		if f.Hits != c.want || f.Failed != 100-c.want {
			t.Errorf("operation %d: %+v, not %d hits", c.op, f, c.want)
		}
		for _, h := range hitsOf(p) {
			i := int(h.Arguments[0])
			if want := text[:min(i+50, MaxString)]; len(h.Strings) != 1 || h.Strings[0] != want || h.Unreadable&1 != 0 {
				t.Errorf("arguments %v, strings %q, unreadable %b", h.Arguments, h.Strings, h.Unreadable)
			}
		}
	}
}

func TestNothingAfterClose(t *testing.T) {
	p, err := Load(Config{Probes: []Probe{{}}})
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrUnsupported) {
		t.Skipf("this host cannot run the programs: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	first := instruction()
	link, err := p.Attach("/proc/self/exe", os.Getpid(), []Site{siteOf(t)})
	if err != nil {
		t.Fatal(err)
	}
	if b := instruction(); b != breakpoint {
		t.Errorf("the instruction begins with %#x while the probe is attached", b)
	}
	link.Close()
	if b := instruction(); b != first {
		t.Errorf("the instruction begins with %#x after the probe, and with %#x before", b, first)
	}
	probedCall(1, "")
	if f := figuresOf(t, p); f.Hits != 0 {
		t.Errorf("%+v after the probe was removed", f)
	}
}

func TestEndedProcess(t *testing.T) {
	p, err := Load(Config{Probes: []Probe{{}}})
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrUnsupported) {
		t.Skipf("this host cannot run the programs: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	const none = 1 << 22 // the kernel's limit
	if _, err := p.Attach("/proc/self/exe", none, []Site{siteOf(t)}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("attached to a process that does not exist: %v", err)
	}
}

// TestUncountedThreadsRefused: an older kernel counts the hits of the main thread only, if it is to count those of one
// process. This program has several threads.
func TestUncountedThreadsRefused(t *testing.T) {
	p, err := Load(Config{Probes: []Probe{{}}, Postmaster: os.Getpid()})
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrUnsupported) {
		t.Skipf("this host cannot run the programs: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.Uprobes.MainThreadOnly = true
	link, err := p.Attach("/proc/self/exe", os.Getpid(), []Site{siteOf(t)})
	if link.Close(); !errors.Is(err, ErrUnsupported) {
		t.Errorf("attached to a process with several threads: %v", err)
	}
	if link, err = p.Attach("/proc/self/exe", 0, []Site{siteOf(t)}); err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread() // it is not the main thread, which this test may run on
		probedCall(1, "")
		close(done)
	}()
	probedCall(1, "")
	<-done
	if f := figuresOf(t, p); f.Hits != 2 {
		t.Errorf("2 calls in two threads, but %+v", f)
	}
}

// TestLayouts compares the types of Go with those of the compiled programs.
func TestLayouts(t *testing.T) {
	t.Parallel()
	spec, err := loadProbe()
	if err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]uintptr{
		"hit": unsafe.Sizeof(hit{}), "probe": unsafe.Sizeof(probe{}), "argument": unsafe.Sizeof(argument{}),
		"condition": unsafe.Sizeof(condition{}), "figures": unsafe.Sizeof(Figures{}),
		"figures_key": unsafe.Sizeof(figuresKey{}), "latency": unsafe.Sizeof(Latency{}),
		"control": unsafe.Sizeof(control{}),
	} {
		var s *btf.Struct
		if err := spec.Types.TypeByName(name, &s); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if uintptr(s.Size) != size {
			t.Errorf("%s has %d bytes in C and %d in Go", name, s.Size, size)
		}
	}
}
