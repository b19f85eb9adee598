package source

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/history/recorder"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
)

// Bounds of the stacks that are taken for phrases after a sample.
const (
	stacksPerSample = 24
	stacksTime      = 200 * time.Millisecond
	stackTimeout    = 2 * time.Second // of one process
	roundsEvery     = 900 * time.Millisecond
)

// session identifies a process of a server.
type session struct {
	pid     int
	started int64
}

// doing is a phrase about a session. It is valid for a session in a later sample as long as the session has the same statement
// (by its start) and the same wait event.
type doing struct {
	phrase string
	query  int64
	event  string
	at     time.Time
}

// stacks has phrases for the active sessions. A round (see round) takes call stacks and makes the phrases in the background, so
// that no sample waits for them.
type stacks struct {
	wanted  time.Time     // time of the last request for phrases or stacks
	busy    bool          // a round runs
	ended   chan struct{} // closed at the end of the round
	began   time.Time     // begin of the last round
	next    int           // index of the active session with which the next round begins
	phrases map[session]doing
}

func identityOf(s *moment.Session) session { return session{s.ServerPID, micro(s.Started)} }

// addPhrases adds the stored phrases to the active sessions that still have the statement and the wait event for which the
// phrase was made.
func (k *stacks) addPhrases(m *moment.Moment) {
	for i := range m.Sessions {
		s := &m.Sessions[i]
		d, ok := k.phrases[identityOf(s)]
		if ok && ClassOf(s) != "" && d.query == micro(s.QueryStart) && d.event == eventOf(s) {
			s.Phrase = d.phrase
		}
	}
}

// take starts a round for the active sessions of a moment, unless the source takes no stacks, a round is running, or the last
// round began less than roundsEvery ago. The caller must have locked l.mu.
func (k *stacks) take(l *Live, m *moment.Moment) {
	if k.busy || l.o.Capturer == nil || l.server == nil || time.Since(k.began) < roundsEvery {
		return
	}
	var active []*moment.Session
	for i := range m.Sessions {
		if ClassOf(&m.Sessions[i]) != "" {
			active = append(active, &m.Sessions[i])
		}
	}
	if len(active) == 0 {
		k.phrases = nil
		return
	}
	k.busy, k.began, k.ended = true, time.Now(), make(chan struct{})
	from := k.next
	if len(active) <= stacksPerSample {
		from = 0
	}
	k.next = (from + stacksPerSample) % len(active)
	go l.round(*l.server, active, from)
}

// round takes the stacks of at most stacksPerSample of the active sessions, beginning with the index from. It stores the
// stacks, and the phrases that they give.
func (l *Live) round(c cluster.Cluster, active []*moment.Session, from int) {
	taken := map[session]doing{}
	list := make([]takenStack, len(active))
	for i, s := range active {
		list[i].session = s
	}
	at := time.Now()
	_ = host.Catch("stacks", func() error {
		begin := time.Now()
		for i := range min(len(active), stacksPerSample) {
			if time.Since(begin) > stacksTime && i > 0 {
				break
			}
			n := (from + i) % len(active)
			s := active[n]
			t, err := l.trace(context.Background(), c, s.ServerPID)
			if i == 0 {
				begin = time.Now() // the first capture may have read files of the program, which takes long
			}
			if err != nil {
				continue
			}
			list[n].frames = recorder.StackOf(t).Frames
			if text := phraseOf(t); text != "" {
				taken[identityOf(s)] = doing{text, micro(s.QueryStart), eventOf(s), time.Now()}
			}
		}
		return nil
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stacks.busy = false
	close(l.stacks.ended)
	l.past.addStacks(at, KindSampled, 2*max(l.o.Interval, roundsEvery), list)
	for id, d := range l.stacks.phrases { // keep the phrases of earlier rounds, because with many sessions one round has only some
		if _, ok := taken[id]; !ok && len(active) > stacksPerSample && time.Since(d.at) < watchStacks {
			taken[id] = d
		}
	}
	l.stacks.phrases = taken
	if l.last != nil {
		l.stacks.addPhrases(l.last)
	}
}

// phraseOf says what a process does, and in which line of a database function. It is empty if neither is known.
func phraseOf(t *backtrace.Trace) string {
	text := ""
	if p := render.Phrase(t); p.Text != "" {
		text = p.Text
	}
	if in := render.Function(t); in != "" {
		if text == "" {
			return "in " + in
		}
		text += ", in " + in
	}
	return text
}

// trace captures the call stack of a process of the server without a stop of the process.
func (l *Live) trace(ctx context.Context, c cluster.Cluster, pid int) (*backtrace.Trace, error) {
	if l.o.Capturer == nil {
		return nil, errors.New("this source takes no stacks")
	}
	target, err := c.Contains(pid)
	if err != nil {
		return nil, err
	}
	defer target.Held.Release()
	ctx, cancel := context.WithTimeout(ctx, stackTimeout)
	defer cancel()
	read, stop := context.WithTimeout(ctx, stackTimeout/2) //nolint:mnd // half of the time
	_ = l.o.Capturer.AwaitProgram(read, target.PID)        // a stack without the wait event is better than none
	stop()
	return l.o.Capturer.Capture(ctx, target, capture.Options{Deadline: stackTimeout, NonStop: true})
}

// current returns the running server. It returns an error if the server does not run.
func (l *Live) current() (cluster.Cluster, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.server == nil {
		return cluster.Cluster{}, errors.New("the server does not run")
	}
	return *l.server, nil
}

// Stack implements Prober.Stack.
func (l *Live) Stack(ctx context.Context, pid int) (*Stack, error) {
	c, err := l.current()
	if err != nil {
		return nil, err
	}
	at := time.Now()
	t, err := l.trace(ctx, c, pid)
	if err != nil {
		return nil, err
	}
	s := &Stack{Time: at, Engine: t.Engine, Frames: []Frame{}}
	p := render.Phrase(t)
	s.Phrase, s.Advice, s.Page = phraseOf(t), p.Advice, p.Page
	if len(t.Threads) == 0 {
		return s, nil
	}
	th := &t.Threads[0]
	s.Kernel = th.Kernel
	if !th.Whole {
		s.Stop = th.Stop
	}
	for i := range th.Frames {
		s.Frames = append(s.Frames, frameOf(&th.Frames[i]))
	}
	return s, nil
}

func frameOf(f *backtrace.Frame) Frame {
	x := Frame{Function: f.Label(), Named: f.Function != "", Module: f.Module, Note: f.Note}
	if f.File != "" {
		x.Place = f.File[strings.LastIndexByte(f.File, '/')+1:]
		if f.Line > 0 {
			x.Place += fmt.Sprintf(":%d", f.Line)
		}
	}
	for _, level := range f.Levels {
		x.Levels = append(x.Levels, level.Text)
	}
	return x
}
