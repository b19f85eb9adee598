package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/serve/spool"
)

// job is a request that is running, or that has finished but whose result is not written yet.
type job struct {
	request Request
	done    chan struct{} // closed when result is set
	result  Result
}

func (j *job) finished() bool {
	select {
	case <-j.done:
		return true
	default:
		return false
	}
}

// maxJobs, in batches (Config.Batch), is the largest number of running requests of one database.
const maxJobs = 4

// roleJobs, in batches, is the largest number of running requests of one role that is not a superuser. Slow captures of
// one role must not delay other roles.
const roleJobs = 1

// ratePause is the time for which the requests of a role stay in the queue after the role has exceeded its rate.
const ratePause = 100 * time.Millisecond

// batch claims requests, runs them, and writes the results that are ready within Config.Grace. A request that takes longer
// continues without its claim, and batch claims it again when its result is ready. So each transaction is short, however
// long a capture takes. more reports whether the caller should call batch again at once. captures is the context of the
// requests, which may run longer than the batch.
func (s *session) batch(ctx, captures context.Context) (more bool, err error) {
	s.found = 0
	slow := s.unfinished()
	most := min(s.cfg.Batch, maxJobs*s.cfg.Batch-len(slow))
	if most <= 0 {
		return false, nil
	}
	passed := s.deferred()
	requests, err := s.claim(ctx, most, slow, passed)
	if err != nil {
		return false, err
	}
	s.found = len(requests)
	if len(requests) < most && len(passed) == 0 {
		s.dropDeleted(requests, slow)
	}
	jobs := s.start(captures, requests)
	s.await(ctx, jobs)
	done := make([]*job, 0, len(jobs))
	for _, j := range jobs {
		if j.finished() {
			done = append(done, j)
		}
	}
	if err := s.finish(ctx, done); err != nil {
		return false, err
	}
	for _, j := range done {
		delete(s.jobs, j.request.ID)
		s.report(j)
	}
	s.written += len(done)
	return len(requests) == most, nil
}

// claim begins a transaction, and locks (claims) requests in it. Their number is at most the parameter most. claim
// leaves out requests with an id in the list but, and all requests of the roles in callers.
func (s *session) claim(ctx context.Context, most int, but []int64, callers []uint32) ([]Request, error) {
	b := guarded()
	b.Queue(claimSQL, most, but, callers)
	results := s.conn.SendBatch(ctx, b)
	defer func() { _ = results.Close() }()
	if err := readGuarded(results); err != nil {
		return nil, err
	}
	rows, err := results.Query()
	if err != nil {
		return nil, asAbsent(err)
	}
	requests, err := pgx.CollectRows(rows, s.scan)
	if err != nil {
		return nil, asAbsent(err)
	}
	return requests, results.Close()
}

func (s *session) scan(row pgx.CollectableRow) (Request, error) {
	r := Request{Database: s.database, ASCII: s.ascii}
	var backend, pid *int32
	var started *int64
	var waited float64
	err := row.Scan(&r.ID, &r.Verb, &r.Caller, &r.CallerName, &r.Superuser, &r.Granted, &backend, &pid, &started,
		&r.Settings, &waited)
	if err != nil {
		return r, fmt.Errorf("reading a request: %w", err)
	}
	if backend != nil {
		r.Backend = int(*backend)
	}
	if pid != nil {
		r.PID = int(*pid)
	}
	if started != nil {
		r.Started = uint64(*started)
	}
	r.CallerName = spool.Text([]byte(r.CallerName)) // it may have another encoding than UTF-8
	r.Waited = time.Duration(waited * float64(time.Second))
	return r, nil
}

// start returns the jobs of the claimed requests, and starts the requests that do not run yet. If a role exceeds its
// rate, its requests stay in the queue.
func (s *session) start(ctx context.Context, requests []Request) []*job {
	jobs := make([]*job, 0, len(requests))
	for _, r := range requests {
		j := s.jobs[r.ID]
		if j == nil {
			if !s.withinRate(r) {
				continue
			}
			j = &job{request: r, done: make(chan struct{})}
			s.jobs[r.ID] = j
			go s.carryOut(ctx, j)
		}
		jobs = append(jobs, j)
	}
	return jobs
}

// withinRate reports whether a request may begin now. If so, it counts the request for the rate of its caller. Otherwise the
// requests of this caller stay in the queue for ratePause.
func (s *session) withinRate(r Request) bool {
	if r.Superuser {
		return true
	}
	if _, over := s.overRate[r.Caller]; over {
		return false
	}
	if !s.busy(r.Caller) && (s.cfg.Limiter == nil || s.cfg.Limiter.Take(r.Caller) == nil) {
		return true
	}
	s.overRate[r.Caller] = time.Now().Add(ratePause)
	time.AfterFunc(ratePause, s.wake)
	return false
}

// internalError is the SQLSTATE of unexpected errors.
const internalError = "XX000"

// carryOut runs a request. After a panic, the result of the request is a failure, and the request is not repeated.
func (s *session) carryOut(ctx context.Context, j *job) {
	if err := host.Catch("a queued request", func() error {
		j.result = s.cfg.Handle(ctx, j.request)
		return nil
	}); err != nil {
		s.log.Error().Err(err).Int64("request", j.request.ID).Int("pid", j.request.PID).Msg("queued request failed")
		j.result = Result{
			SQLState: internalError, Message: "internal error of the pg_stat_backtrace worker",
			Hint: "See the log of the worker.",
		}
	}
	close(j.done)
	s.wake()
}

// await waits until all jobs are done, but at most Config.Grace.
func (s *session) await(ctx context.Context, jobs []*job) {
	grace := time.NewTimer(s.cfg.Grace)
	defer grace.Stop()
	for _, j := range jobs {
		select {
		case <-j.done:
		case <-grace.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// finish writes results and ends the transaction of the claim.
func (s *session) finish(ctx context.Context, jobs []*job) error {
	if len(jobs) == 0 {
		_, err := s.conn.Exec(ctx, commit) // nothing is written, so no NOTIFY is needed
		return err
	}
	c := newColumns(len(jobs))
	ids := make([]int64, 0, len(jobs))
	texts := make([]*string, 0, len(jobs))
	for _, j := range jobs {
		ids = append(ids, j.request.ID)
		texts = append(texts, optional(j.result.Text))
		c.add(j.result)
	}
	b := &pgx.Batch{}
	b.Queue(finishSQL, ids, c.engines, c.pauses, c.depths, texts, c.states, c.messages, c.details, c.hints)
	b.Queue(noLockTimeout)
	b.Queue(commit)
	return s.conn.SendBatch(ctx, b).Close()
}

// unfinished returns the ids of the running requests, which must not be claimed.
func (s *session) unfinished() []int64 {
	ids := make([]int64, 0, len(s.jobs))
	for id, j := range s.jobs {
		if !j.finished() {
			ids = append(ids, id)
		}
	}
	return ids
}

// busy reports whether a role has the largest allowed number of running requests.
func (s *session) busy(role uint32) bool {
	n := 0
	for _, j := range s.jobs {
		if j.request.Caller == role && !j.finished() {
			n++
		}
	}
	return n >= roleJobs*s.cfg.Batch
}

// deferred returns the roles that have exceeded their rate and whose pause (see ratePause) has not ended.
func (s *session) deferred() []uint32 {
	roles := make([]uint32, 0, len(s.overRate))
	now := time.Now()
	for role, until := range s.overRate {
		if now.Before(until) {
			roles = append(roles, role)
		} else {
			delete(s.overRate, role)
		}
	}
	return roles
}

// dropDeleted removes finished jobs whose request was deleted from the queue. The list requests must have all requests of
// the queue, except those with an id in the list passed.
func (s *session) dropDeleted(requests []Request, passed []int64) {
	if len(s.jobs) == 0 {
		return
	}
	there := make(map[int64]bool, len(requests)+len(passed))
	for _, r := range requests {
		there[r.ID] = true
	}
	for _, id := range passed {
		there[id] = true
	}
	for id, j := range s.jobs {
		if !there[id] && j.finished() {
			delete(s.jobs, id)
		}
	}
}

// columns has the fields of many results, as one array for each column.
type columns struct {
	engines, states, messages, details, hints []*string
	pauses                                    []*float64
	depths                                    []*int32
}

func newColumns(n int) *columns {
	return &columns{
		engines: make([]*string, 0, n), states: make([]*string, 0, n), messages: make([]*string, 0, n),
		details: make([]*string, 0, n), hints: make([]*string, 0, n),
		pauses: make([]*float64, 0, n), depths: make([]*int32, 0, n),
	}
}

func (c *columns) add(r Result) {
	var pause *float64
	var depth *int32
	if r.Engine != "" {
		us := float64(r.Pause.Nanoseconds()) / 1000
		pause = &us
	}
	if r.Depth > 0 {
		n := int32(r.Depth)
		depth = &n
	}
	c.engines = append(c.engines, optional(r.Engine))
	c.pauses = append(c.pauses, pause)
	c.depths = append(c.depths, depth)
	c.states = append(c.states, optional(r.SQLState))
	c.messages = append(c.messages, optional(r.Message))
	c.details = append(c.details, optional(r.Detail))
	c.hints = append(c.hints, optional(r.Hint))
}

// optional returns NULL for an empty string.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
