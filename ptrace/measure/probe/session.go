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

	// File is the open file, Offset the place of the instruction in the file. Counter is the place of a counter that
	// the kernel increments while the probe is attached; 0: none.
	File            *os.File
	Offset, Counter uint64
	// Emulated means that the kernel emulates the instruction. Otherwise it single-steps the instruction, which takes
	// ten times as long.
	Emulated bool
	// Group is the number of the function to which the point belongs. The probes of one group are removed together.
	Group int
}

// Options of a session.
type Options struct {
	Points []Point
	// PIDs are the processes to trace. If Postmaster is not 0, it is traced instead, with all its children, later ones
	// included.
	PIDs       []int
	Postmaster int
	// Calls times each call from entry to return.
	Calls bool
	// MaxOverhead is the limit of the cost for a process, as a share of its processor time; 0: no limit. For the
	// processes that are judged together (see budget), it is a share of one processor.
	MaxOverhead float64
	// StacksPerSecond is the largest number of stacks to copy in a second; 0: DefaultStacks.
	StacksPerSecond int
	// Cost is the measured cost of hits on this host; see Calibrate. Zero: a guess is used.
	Cost Cost
	// Notice is called when the session takes fewer stacks or removes probes; nil: no call.
	Notice func(Notice)
}

// DefaultStacks is the default of Options.StacksPerSecond. Unwinding so many stacks takes about a tenth of a processor.
const DefaultStacks = 2000

// Notice reports that a session takes fewer stacks or removes probes.
type Notice struct {
	// Removed is set if the probes of Group were removed; otherwise one hit in Every gets a stack from now on.
	Removed bool
	Group   int
	Every   int
	// Overhead is the share of the processor time of process PID that the probes took. If PID is 0, it is the share of
	// one processor that the probes took in all processes that are not judged by themselves. Most of those have ended.
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

	finishTime time.Duration // the time after the end in which the callback take still gets hits
	since      time.Time     // when all probes had been attached
	took       time.Duration // time from the field since until the probes were removed

	mu   sync.Mutex
	past map[Key]Figures // figures of ended processes, removed from the kernel's table
	gone map[int]uint64  // hits of other servers' ended processes, removed from the kernel's table, by group
	lost map[Key]uint64  // hits that were read from the ring, but not passed to take
}

// maxPast is the largest number of keys in Session.past. The figures of further processes are added to Process{}.
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

// checkReturns returns an error if the kernel would crash a process at the return of a call that is timed.
func (s *Session) checkReturns() error {
	if !s.options.Calls {
		return nil
	}
	pids := s.options.PIDs
	if s.options.Postmaster != 0 {
		pids = s.sameProgram() // the kernel puts the probes into all of them
	}
	if err := bpf.ReturnProbes(pids...); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return nil
}

// sameProgram returns the processes of the host whose program is the postmaster's program file or a probed file. The two
// files differ if the postmaster was started by a call of the dynamic linker.
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

// attach attaches every point to every traced process that lives.
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

// Run calls the callback take with hits until ctx ends, the duration since Open is over (0: no limit), all processes have
// ended, or all probes were removed because of their cost. These are no errors. It calls the callback tick about 50 times a
// second, or less often if take takes longer; nil: no call. Both are called in the same separate goroutine, and an error of
// either ends the session. The error wraps ErrUnsupported if a process has started a thread whose hits the kernel does not
// count. At the end, Run removes the probes, and returns when take has returned. Hits for which take was not called are
// counted as lost.
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

// watch passes hits to the handover and checks the cost until the session is over.
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

// Took returns how long the probes counted hits. Call it after Run. The time after the removal of the probes is not
// included.
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

// attached reports whether any group still has probes.
func (s *Session) attached() bool {
	return slices.ContainsFunc(s.links, func(l []*Link) bool { return len(l) > 0 })
}

// Figures returns the figures by group and process. Process{} stands for all processes for which there was no room.
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

// Others returns the hits, by group, of other servers' processes that run the same program file. These hits are not in
// Figures, but the kernel stops these processes at a probe, too.
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

// removeOthers moves the hits of other servers' ended processes from the kernel's table to the field gone, to make room for
// other processes.
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

// sums adds up the figures in table, read from the kernel, and those in the field past. Hits in the field lost count as Lost
// and not as Stacks in the result.
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
			key.Process = Process{} // the kernel's table had no room for its process
		}
		f := sums[key]
		n = min(n, f.Stacks)
		f.Stacks -= n
		f.Lost += n
		sums[key] = f
	}
	return sums
}

// lose counts a hit, which was read from the ring, as lost.
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

// removeEnded moves the figures of ended processes from the kernel's table to the field past, to make room for other
// processes. The parameter sums is the result of the method sums for the table. If past has no room for a process, its
// figures in sums are moved to Process{}, too, so that the next sums has the same keys.
//
// A process has ended if no process has its PID. Then it cannot hit a probe any more, and its figures are final. As
// long as another process has the PID, the figures stay in the table.
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

// addPast adds the final figures of an ended process to the field past, under Process{} if there is no room.
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

// Key is a group of points, and a process that hit them.
type Key struct {
	Group   int
	Process Process
}

// Latency returns the durations of the calls at all points of a group, added up.
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

// Close removes all probes and frees all resources.
func (s *Session) Close() {
	s.Detach()
	s.programs.Close()
}

// processes returns the ids of the traced processes. Processes of Options.PIDs may have ended.
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
