package probe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"pg_stat_backtrace/ptrace/bpf"
	"pg_stat_backtrace/ptrace/process"
)

// ErrEnded means that all processes that were to be traced have ended.
var ErrEnded = errors.New("all processes have ended")

// Point is an instruction to probe.
type Point struct {
	Probe

	// File is the open file, Offset the place of the instruction in it. Counter is the place of a counter that the
	// kernel increments while the probe is attached; 0: none.
	File            *os.File
	Offset, Counter uint64
	// Emulated: the kernel emulates the instruction. Otherwise it single-steps it, which takes some ten times as long.
	Emulated bool
	// Group is the number of the function that the point belongs to. Points of one group are removed together.
	Group int
}

// Options of a session.
type Options struct {
	Points []Point
	// PIDs are the processes to trace. Postmaster, if not 0, is a process that is traced with all its children, those
	// that it makes later too.
	PIDs       []int
	Postmaster int
	// Calls times each call from entry to return.
	Calls bool
	// MaxOverhead is the limit of the cost, as a share of the processor time of the process that pays most; 0: no limit.
	// All processes that have ended pay together at most this share of one processor.
	MaxOverhead float64
	// StacksPerSecond is the limit of copied stacks; 0: DefaultStacks.
	StacksPerSecond int
	// Cost is the measured cost of hits on this host. The zero value stands for a guess.
	Cost Cost
	// Notice is called with what a user has to know while the session runs; nil: it is dropped.
	Notice func(Notice)
}

// DefaultStacks is the default of Options.StacksPerSecond. Unwinding them takes about a tenth of a processor.
const DefaultStacks = 2000

// Notice reports that a session takes fewer stacks or removes probes.
type Notice struct {
	// Removed is set if the probes of Group were removed; otherwise one hit in Every gets a stack from now on.
	Removed bool
	Group   int
	Every   int
	// Overhead is the share of the processor time of process PID that the probes took. If PID is 0, it is the share of one
	// processor that the probes took in all processes that could not be judged by themselves, most of which have ended.
	Overhead float64
	PID      int
	// Other is set if PID is a process of another server that runs the same program.
	Other bool
}

// Session is a set of attached probes.
type Session struct {
	options  Options
	programs *Programs
	links    [][]*Link // by group
	budget   budget
	ended    map[int]bool

	finishTime time.Duration // how long after the end hits are still handed to take
	since      time.Time     // when all probes were attached
	took       time.Duration // from then until the probes were removed

	mu   sync.Mutex
	past map[Key]Figures // of ended processes, which are no longer in the kernel's table
	gone map[int]uint64  // hits of other servers' processes, likewise, by group
	lost map[Key]uint64  // hits that the kernel has handed over, and that take was not called for
}

// maxPast bounds the keys in Session.past. The figures of later processes count for Process{}.
const maxPast = 8192

// Open attaches the probes. Processes of Options.PIDs that have ended are left out; if all have, the error is ErrEnded.
// Other errors wrap fs.ErrPermission or ErrUnsupported, or say which instruction the kernel refuses.
func Open(o Options) (*Session, error) {
	s := &Session{
		options: o, ended: make(map[int]bool), past: make(map[Key]Figures), lost: make(map[Key]uint64),
		gone: make(map[int]uint64), finishTime: finishTime,
	}
	config := Config{Postmaster: o.Postmaster, Calls: o.Calls}
	groups := 0
	for i := range o.Points {
		config.Probes = append(config.Probes, o.Points[i].Probe)
		groups = max(groups, o.Points[i].Group+1)
	}
	err := s.checkReturns()
	if err != nil {
		return nil, err
	}
	if s.programs, err = Load(config); err != nil {
		return nil, err
	}
	s.links = make([][]*Link, groups)
	s.budget.start(s)
	if err := s.attach(); err != nil {
		s.Close()
		return nil, err
	}
	s.since = time.Now()
	return s, nil
}

// checkReturns returns an error if the kernel would crash processes at a return that is timed.
func (s *Session) checkReturns() error {
	if !s.options.Calls {
		return nil
	}
	pids := s.options.PIDs
	if s.options.Postmaster != 0 {
		pids = s.sameProgram() // the kernel probes all of them
	}
	if err := bpf.ReturnProbes(pids...); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return nil
}

// sameProgram returns the processes of the host that run the same file as the postmaster, or a probed file. The two
// differ if the postmaster was started by a call of the dynamic linker.
func (s *Session) sameProgram() (pids []int) {
	const program = "/proc/%d/exe"
	var files []os.FileInfo
	if own, err := os.Stat(fmt.Sprintf(program, s.options.Postmaster)); err == nil {
		files = append(files, own)
	}
	for i := range s.options.Points {
		if info, err := s.options.Points[i].File.Stat(); err == nil {
			files = append(files, info)
		}
	}
	all, _ := filepath.Glob("/proc/[1-9]*")
	for _, dir := range all {
		other, _ := strconv.Atoi(filepath.Base(dir))
		info, err := os.Stat(fmt.Sprintf(program, other))
		if err == nil && slices.ContainsFunc(files, func(f os.FileInfo) bool { return os.SameFile(f, info) }) {
			pids = append(pids, other)
		}
	}
	return pids
}

// attach attaches every point to every process.
func (s *Session) attach() error {
	pids := s.options.PIDs
	if s.options.Postmaster != 0 {
		pids = []int{0}
	}
	for i := range s.options.Points {
		p := &s.options.Points[i]
		path := fmt.Sprintf("/proc/self/fd/%d", p.File.Fd())
		site := Site{Probe: i, Offset: p.Offset, Counter: p.Counter}
		for _, pid := range pids {
			if s.ended[pid] {
				continue
			}
			link, err := s.programs.Attach(path, pid, []Site{site})
			if errors.Is(err, fs.ErrNotExist) {
				s.ended[pid] = true
				continue
			}
			if err != nil {
				return fmt.Errorf("offset %#x of %s: %w", p.Offset, p.File.Name(), err)
			}
			s.links[p.Group] = append(s.links[p.Group], link)
		}
	}
	if len(pids) > 0 && len(s.ended) == len(pids) {
		return ErrEnded
	}
	return nil
}

// Run hands hits to take until ctx ends, or until so long after Open (0: no limit), or until all processes have ended,
// which are no errors. tick is called about 50 times a second, unless take takes longer; nil: it is not. Both are called
// in the same other goroutine. An error of take or tick ends the session too. The error wraps ErrUnsupported if a process
// has started a thread whose hits the kernel does not count. The probes are removed at the end, even while take has not
// returned. Run returns when it has. Hits that take was not called for count as lost.
func (s *Session) Run(ctx context.Context, duration time.Duration, take func(*Hit) error, tick func() error) error {
	h := newHandover(s, take, tick)
	err := s.watch(ctx, duration, h)
	s.Detach()
	s.took = time.Since(s.since)
	patience := s.finishTime
	if err != nil {
		patience = 0
	}
	if lastErr := h.finish(patience); err == nil {
		err = lastErr
	}
	return err
}

// watch hands on hits and checks the cost until the session is over.
func (s *Session) watch(ctx context.Context, duration time.Duration, h *handover) error {
	const look = 20 * time.Millisecond
	var end time.Time
	if duration > 0 {
		end = s.since.Add(duration)
	}
	for {
		for until := time.Now().Add(look); h.next(until, until); {
			if ctx.Err() != nil || time.Now().After(until) {
				break
			}
		}
		h.tick()
		if err := h.err(); err != nil {
			return err
		}
		over, err := s.budget.check()
		if err != nil {
			return err
		}
		if over || ctx.Err() != nil || !end.IsZero() && time.Now().After(end) {
			break
		}
	}
	return s.checkThreads()
}

// checkThreads returns an error if the kernel does not count the hits of all threads of the traced processes.
func (s *Session) checkThreads() error {
	if s.options.Postmaster != 0 {
		return nil // the probes are attached for all processes
	}
	for _, pid := range s.options.PIDs {
		if err := s.programs.CheckThreads(pid); err != nil {
			return err
		}
	}
	return nil
}

// Took returns how long the probes counted, after Run. What Run did after the removal of the probes is not part of it.
func (s *Session) Took() time.Duration { return s.took }

// Detach removes all probes. The figures stay until Close.
func (s *Session) Detach() {
	for group := range s.links {
		s.remove(group)
	}
}

// remove removes the probes of a group.
func (s *Session) remove(group int) {
	for _, link := range s.links[group] {
		link.Close()
	}
	s.links[group] = nil
}

// attached reports whether a group still has probes.
func (s *Session) attached() bool {
	return slices.ContainsFunc(s.links, func(l []*Link) bool { return len(l) > 0 })
}

// Figures returns the figures by group and process. Process{} stands for all processes that found no room.
// It may be called while Run runs.
func (s *Session) Figures() (map[Key]Figures, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	table, err := s.programs.Figures()
	if err != nil {
		return nil, err
	}
	return s.sums(table), nil
}

// Others returns the hits, by group, of processes that are not the postmaster's: those of other servers that run the
// same program file. They are not in Figures. The kernel stops these processes at a probe too.
func (s *Session) Others() (map[int]uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	table, err := s.programs.Others()
	if err != nil {
		return nil, err
	}
	sums := maps.Clone(s.gone)
	for k, n := range table {
		if n > 0 {
			sums[s.options.Points[k.Probe].Group] += n
		}
	}
	return sums, nil
}

// removeOthers takes the hits of other servers' ended processes out of the kernel's table, as removeEnded does.
func (s *Session) removeOthers(table map[tableKey]uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range table {
		if k.Process == (Process{}) || !(process.ID{PID: k.Process.PID}).Ended() {
			continue
		}
		n, err := s.programs.RemoveOther(k)
		if err != nil {
			return err
		}
		s.gone[s.options.Points[k.Probe].Group] += n
	}
	return nil
}

// sums adds up the figures in the kernel's table and the figures that removeEnded has taken out of it.
func (s *Session) sums(table map[tableKey]Figures) map[Key]Figures {
	sums := make(map[Key]Figures, len(table)+len(s.past))
	maps.Copy(sums, s.past)
	for k, f := range table {
		if f != (Figures{}) {
			addTo(sums, s.keyOf(k), f)
		}
	}
	for key, n := range s.lost {
		if sums[key].Stacks < n {
			key.Process = Process{} // it found no room
		}
		f := sums[key]
		n = min(n, f.Stacks)
		f.Stacks -= n
		f.Lost += n
		sums[key] = f
	}
	return sums
}

// lose counts a hit that the kernel has handed over as lost.
func (s *Session) lose(h *Hit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost[Key{s.options.Points[h.Probe].Group, h.Process}]++
}

func (s *Session) keyOf(k tableKey) Key { return Key{s.options.Points[k.Probe].Group, k.Process} }

func addTo(sums map[Key]Figures, key Key, f Figures) {
	sum := sums[key]
	sum.Add(f)
	sums[key] = sum
}

// removeEnded takes the figures of ended processes out of the kernel's table, so that it has room for others, and adds
// them to past. sums are the sums of the table: removeEnded changes their keys as it changes those of later ones.
//
// A process has ended if no process has its PID. Then it cannot hit a probe any more: the figures are final. While
// another process has the PID, they stay in the table.
func (s *Session) removeEnded(table map[tableKey]Figures, sums map[Key]Figures) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range table {
		if k.Process == (Process{}) || !(process.ID{PID: k.Process.PID}).Ended() {
			continue
		}
		f, err := s.programs.Remove(k)
		if err != nil {
			return err
		}
		s.addPast(s.keyOf(k), f, sums)
	}
	return nil
}

// addPast keeps final figures of an ended process: for Process{} if there is no room.
func (s *Session) addPast(key Key, f Figures, sums map[Key]Figures) {
	_, kept := s.past[key]
	if !kept && len(s.past) >= maxPast {
		rest := Key{Group: key.Group}
		addTo(sums, rest, sums[key])
		delete(sums, key)
		key = rest
	}
	addTo(s.past, key, f)
}

// Key is a group in a process.
type Key struct {
	Group   int
	Process Process
}

// Latency returns the durations of the calls of a group.
func (s *Session) Latency(group int) (sum Latency, err error) {
	for i := range s.options.Points {
		if s.options.Points[i].Group != group {
			continue
		}
		l, err := s.programs.Latency(i)
		if err != nil {
			return sum, err
		}
		sum.Returns += l.Returns
		sum.Total += l.Total
		sum.Longest = max(sum.Longest, l.Longest)
		for b := range l.Buckets {
			sum.Buckets[b] += l.Buckets[b]
		}
	}
	return sum, nil
}

// Close removes all probes and frees everything.
func (s *Session) Close() {
	s.Detach()
	s.programs.Close()
}

// processes returns the processes that are traced and live.
func (s *Session) processes() ([]int, error) {
	if s.options.Postmaster == 0 {
		return s.options.PIDs, nil
	}
	children, err := process.Children(s.options.Postmaster)
	if err != nil {
		return nil, fmt.Errorf("list the children of process %d: %w", s.options.Postmaster, err)
	}
	return append(children, s.options.Postmaster), nil
}
