package sampler

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// processor has the samples of one processor's timer. Its methods are for one thread at a time, which runs on that
// processor.
type processor struct {
	state *state
	area  []byte // for stacks

	ring               *ebpf.Map
	consumed, produced *uint64 // positions in the ring

	request           request
	start, stop, read runAttributes
}

// request is struct cpu_request.
type request struct {
	index uint32 // of the processor in the tables
}

// runAttributes has the members of union bpf_attr that BPF_PROG_TEST_RUN takes (linux/bpf.h).
type runAttributes struct {
	program, result  uint32
	_                [2]uint32 // data sizes
	_                [2]uint64 // data
	_                [2]uint32 // repeat, duration
	contextSize, _   uint32
	context          uint64
	_                uint64 // context out
	_, _, batch, end uint32
}

const (
	stateSize = int(unsafe.Sizeof(state{}))

	// longestPeriod can be multiplied with a number of 22 bits.
	longestPeriod = time.Hour
)

func newProcessor(memory, area []byte, programs map[string]*ebpf.Program, index uint32) *processor {
	p := &processor{state: (*state)(unsafe.Pointer(&memory[0])), area: area, request: request{index}}
	p.start, p.stop, p.read = p.attributes(programs["start_timer"]), p.attributes(programs["stop_timer"]),
		p.attributes(programs["read_wanted"])
	return p
}

func (p *processor) attributes(program *ebpf.Program) runAttributes {
	return runAttributes{
		program: uint32(program.FD()), contextSize: uint32(unsafe.Sizeof(p.request)),
		context: uint64(uintptr(unsafe.Pointer(&p.request))), // it does not move, and lives as long as p
	}
}

func wordAt(memory []byte) *uint64 { return (*uint64)(unsafe.Pointer(&memory[0])) }

// runProgram runs a program like a system call.
//
//go:nosplit
//go:norace
func runProgram(a *runAttributes) (result int32, errno unix.Errno) {
	const commandRun = 10
	a.result = 0
	_, _, errno = unix.RawSyscall(unix.SYS_BPF, commandRun, uintptr(unsafe.Pointer(a)), unsafe.Sizeof(*a))
	return int32(a.result), errno
}

// check words the result of a program that starts or stops a timer.
func check(what string, result int32, errno unix.Errno) error {
	if errno == 0 {
		errno = unix.Errno(-result)
	}
	if errno != 0 {
		return fmt.Errorf("%s of the kernel's: %w", what, errno)
	}
	return nil
}

// Target returns a target. The first n that Aim names are sampled.
//
//go:nosplit
//go:norace
func (p *processor) Target(i int) *rawTarget { return &p.state.targets[i] }

// Aim sets the number of targets.
func (p *processor) Aim(targets int) { p.state.numTargets = uint32(targets) }

// Start starts the timer on the processor that the caller is bound to. It fires once in a period, more or less a half
// by chance, until Stop or for so long at most, so that a program that is itself stopped interrupts no process. The
// first time it fires as if it had run for long: starting and stopping does not change how often it fires.
func (p *processor) Start(period, most time.Duration) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("clock: %w", err)
	}
	p.state.period = uint64(max(1, min(period, longestPeriod)))
	which, where := rand.Float64(), rand.Float64() //nolint:gosec // guessing them is of no use
	p.state.first = uint64(max(1, untilNext(float64(p.state.period), which, where)))
	p.state.until = uint64(now.Nano() + int64(most))
	result, errno := runProgram(&p.start)
	return check("start a timer", result, errno)
}

// untilNext is the time from a random moment to the next of moments that are a period apart, more or less a half. Two
// random numbers choose the moment: an interval is met the more often the longer it is, at any place in it.
func untilNext(period, which, where float64) float64 { return period * math.Sqrt(0.25+2*which) * where }

// Stop stops the timer. Samples may be read then.
func (p *processor) Stop() error {
	p.state.period = 0
	result, errno := runProgram(&p.stop)
	return check("stop a timer", result, errno)
}

// ReadWanted samples the targets that the timer could not sample.
//
//go:nosplit
//go:norace
func (p *processor) ReadWanted() unix.Errno {
	_, errno := runProgram(&p.read)
	return errno
}

// Descriptor is readable when a target is wanted or has exited, or there is no more room, until Seen.
func (p *processor) Descriptor() int { return p.ring.FD() }

// Seen makes the descriptor unreadable until the next reason.
//
//go:nosplit
//go:norace
func (p *processor) Seen() { *p.consumed = *p.produced }

// Room reports whether there is room for another sample.
//
//go:nosplit
//go:norace
func (p *processor) Room() bool {
	return p.state.numSamples < MaxSamples && p.state.stackUsed <= uint64(len(p.area)-MaxStack)
}

// AllGone reports whether all targets have exited.
//
//go:nosplit
//go:norace
func (p *processor) AllGone() bool {
	for i := range int(p.state.numTargets) {
		if t := p.Target(i); t.TID != 0 && t.Gone == 0 {
			return false
		}
	}
	return true
}

// Samples returns the samples since Reset, some of which have Outcome None.
func (p *processor) Samples() []rawSample {
	return p.state.samples[:min(p.state.numSamples, MaxSamples)]
}

// Missed returns how many looks since Reset found a thread and did not sample it: there was no room, it returned from a
// signal, or it began to run.
func (p *processor) Missed() int { return int(p.state.missed) }

// Stacks returns all copies of stacks since Reset. Sample.StackAt says where each begins.
func (p *processor) Stacks() []byte { return p.area[:min(p.state.stackUsed, uint64(len(p.area)))] }

// Stack returns a sample's copy of the stack.
func (p *processor) Stack(s *rawSample) []byte {
	return p.area[s.StackAt:][:s.StackLength:s.StackLength]
}

// Reset forgets all samples.
func (p *processor) Reset() {
	p.state.numSamples, p.state.missed, p.state.stackUsed = 0, 0, 0
	for i := range p.state.targets {
		p.state.targets[i].Last = 0
	}
}
