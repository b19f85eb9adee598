package verb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/state"
	"pg_stat_backtrace/worker/report/profilefmt"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
	"pg_stat_backtrace/worker/serve/spool"
)

// The verb of pg_backtrace_summary_text. The extension makes a request for each sample, as for a summary by rows, and a
// last request for the text. The worker adds up the stacks in between.
const verbSummaryText = "summary_text"

var _ = register(Verb{Name: verbSummaryText, answer: (*Service).answerSummaryText})

// errSamplesLost means that the worker was restarted, or that the request came after the summary had expired.
var errSamplesLost = &render.Fault{
	SQLState: render.NotInPrerequisiteState, Message: "the samples of the summary are lost",
	Detail: "The worker was restarted, or it has not been asked for too long.",
}

// summaryStep is one request of a summary, from the setting trace. run is a text that identifies the call.
type summaryStep struct {
	run string
	// sample is the number of the sample, from 1; 0 asks for the text.
	sample int
	// next is the longest time until the next request.
	next time.Duration
	// top is the number of stacks, functions and lines in the text.
	top int
}

func readSummaryStep(text string) (step summaryStep, err error) {
	var seconds float64
	words := strings.Fields(text)
	bad := invalid("trace", text, "Call pg_backtrace_summary_text.")
	if len(words) != 4 { //nolint:mnd // run, sample, seconds, top
		return step, bad
	}
	step.run = words[0]
	var errs [3]error
	step.sample, errs[0] = strconv.Atoi(words[1])
	seconds, errs[1] = strconv.ParseFloat(words[2], 64)
	step.top, errs[2] = strconv.Atoi(words[3])
	if slices.ContainsFunc(errs[:], func(err error) bool { return err != nil }) || step.sample < 0 ||
		!(seconds >= 0 && seconds <= limits.MaxSummaryPause.Seconds()) || step.top < 1 || step.top > limits.MaxTraceRows {
		return step, bad
	}
	step.next = time.Duration(seconds*float64(time.Second)) + limits.SummaryIdle
	return step, nil
}

// summaries are the summaries in progress, by the process id of the calling backend.
type summaries struct {
	mu        sync.Mutex
	byBackend map[int]*summary
}

// summary adds up the stacks of samples.
type summary struct {
	run     string
	caller  uint32
	release func()      // returns the place in bounds.summaries
	expiry  *time.Timer // ends the summary if no further request comes in time

	reading sync.Mutex // guards reader, because an abandoned request may still use it
	reader  *state.Reader

	mu      sync.Mutex
	stacks  profilefmt.Traces
	samples int
	taken   int            // number of stacks
	left    int            // number of these stacks that were counted without frames, for lack of room
	lost    map[string]int // number of stacks that could not be taken, by reason
}

// begin makes a summary. The summary replaces an earlier summary of the same backend. If there are too many summaries, begin first
// ends those whose backend has ended, according to the callback gone. The error is limits.ErrBusy if there are still too many.
func (s *summaries) begin(b *bounds, req spool.Request, step summaryStep, gone func(backend int) bool) (*summary, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(req.Backend, s.byBackend[req.Backend])
	release, ok := b.summaries.Try(user(caller(req)), 1)
	if !ok {
		for backend, t := range s.byBackend {
			if gone(backend) {
				s.end(backend, t)
			}
		}
		release, ok = b.summaries.Try(user(caller(req)), 1)
	}
	if !ok {
		return nil, limits.ErrBusy
	}
	t := &summary{run: step.run, caller: req.Caller, release: release, lost: map[string]int{}}
	t.expiry = time.AfterFunc(step.next, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.end(req.Backend, t)
	})
	if s.byBackend == nil {
		s.byBackend = map[int]*summary{}
	}
	s.byBackend[req.Backend] = t
	return t, nil
}

// find returns the summary to which a request belongs, and lets it live until the next request is due. It returns nil if the
// summary has ended.
func (s *summaries) find(req spool.Request, step summaryStep) *summary {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.byBackend[req.Backend]
	if t == nil || t.run != step.run || t.caller != req.Caller {
		return nil
	}
	t.expiry.Reset(step.next)
	return t
}

// end removes a summary unless it was removed before. The caller has locked s.mu.
func (s *summaries) end(backend int, t *summary) {
	if t != nil && s.byBackend[backend] == t {
		delete(s.byBackend, backend)
		t.expiry.Stop()
		t.release()
	}
}

// answerSummaryText captures the stacks of one sample, or answers with the text of all samples.
func (s *Service) answerSummaryText(ctx context.Context, c call) spool.Answer {
	req := c.Request
	step, err := readSummaryStep(req.Settings["trace"])
	if err != nil {
		return s.fail(req, c.began, err)
	}
	var t *summary
	if step.sample == 1 {
		t, err = s.summaries.begin(s.bounds, req, step, s.hasEnded)
	} else if t = s.summaries.find(req, step); t == nil {
		err = errSamplesLost
	}
	if err != nil {
		return s.fail(req, c.began, err)
	}
	if step.sample == 0 {
		defer func() {
			s.summaries.mu.Lock()
			defer s.summaries.mu.Unlock()
			s.summaries.end(req.Backend, t)
		}()
		text, err := t.text(step.top, req.Encoding != encodingUTF8)
		if err != nil {
			return s.fail(req, c.began, err)
		}
		return spool.Answer{Text: text}
	}
	t.mu.Lock()
	t.samples = step.sample
	t.mu.Unlock()
	types := s.backendTypes(t)
	add := func(int) func(*backtrace.Trace) string {
		return func(trace *backtrace.Trace) string {
			t.add(trace, cmp.Or(types[trace.PID], "other process"))
			return ""
		}
	}
	return s.many(ctx, c, add, func(_ cluster.Cluster, outcomes []outcome) [][]string {
		for _, o := range outcomes {
			if o.err != nil && (len(req.Targets) > 0 || o.pid != req.Backend) {
				t.lose(failure(o.pid, o.err).Message)
			}
		}
		return nil
	})
}

// hasEnded reports whether a backend has ended. It returns false if its process id has another process now.
func (s *Service) hasEnded(backend int) bool {
	c, err := s.cfg.Server()
	if err != nil {
		return false
	}
	pid := c.Local(backend)
	if pid == 0 { // no such child, or the children cannot be listed
		children, err := c.Children()
		return err == nil && !slices.Contains(children, backend)
	}
	stat, err := process.ReadStat(pid)
	return errors.Is(err, process.ErrGone) || err == nil && process.HasEnded(&stat)
}

// backendTypes returns the types of the server's processes, as in pg_stat_activity, by their process ids on this host.
// If the server's memory cannot be read, it returns nil.
func (s *Service) backendTypes(t *summary) map[int]string {
	t.reading.Lock()
	defer t.reading.Unlock()
	if t.reader == nil {
		c, err := s.cfg.Server()
		if err != nil {
			return nil
		}
		if t.reader, err = state.Open(c); err != nil {
			return nil
		}
	}
	now, err := t.reader.Read(state.Options{})
	if err != nil {
		return nil
	}
	types := make(map[int]string, len(now.Sessions))
	for i := range now.Sessions {
		types[now.Sessions[i].PID] = now.Sessions[i].Type
	}
	return types
}

// add counts a stack. Stacks for which there is no room are counted without frames.
func (t *summary) add(trace *backtrace.Trace, backendType string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken++
	if t.stacks.Frames() > limits.MaxSummaryFrames {
		t.left++
		trace = &backtrace.Trace{Threads: []backtrace.Thread{{Stop: "no room for further stacks"}}}
	}
	t.stacks.AddTyped(trace, backendType, 1)
}

// lose counts a stack that could not be taken. Beyond 1000 reasons it uses "other reasons".
func (t *summary) lose(reason string) {
	const most = 1000
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lost) >= most && t.lost[reason] == 0 {
		reason = "other reasons"
	}
	t.lost[reason]++
}

// text returns the summary: the totals and the tree of calls.
func (t *summary) text(top int, ascii bool) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	err := profilefmt.Write(&b, t.stacks.Profile(), profilefmt.Options{
		Format: profilefmt.Text, Title: units.Count(t.taken, "stack") + " in " + units.Count(t.samples, "sample"), Top: top, Notes: t.notes(),
		Root: []string{profilefmt.LabelBackendType},
	})
	if err != nil {
		return "", err
	}
	text := strings.TrimRight(b.String(), "\n")
	if ascii {
		text = escaped(text)
	}
	return cutLines(text, limits.MaxText), nil
}

// notes lists why stacks are missing, the most frequent reason first.
func (t *summary) notes() (notes []string) {
	const most = 10
	reasons := slices.SortedFunc(maps.Keys(t.lost), func(a, b string) int {
		return cmp.Or(cmp.Compare(t.lost[b], t.lost[a]), cmp.Compare(a, b))
	})
	for i, reason := range reasons {
		if i == most {
			notes = append(notes, fmt.Sprintf("further reasons: %d", len(reasons)-most))
			break
		}
		notes = append(notes, "not taken "+units.Count(t.lost[reason], "time")+": "+reason)
	}
	if t.left > 0 {
		notes = append(notes, "the frames of "+units.Count(t.left, "stack")+" are left out: there are too many different stacks")
	}
	return notes
}

// escaped replaces characters that are not ASCII by escapes, for a database whose encoding may lack these characters.
func escaped(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r < 0x80: //nolint:mnd // ASCII
			b.WriteRune(r)
		case r > 0xffff: //nolint:mnd // as in stacks
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
