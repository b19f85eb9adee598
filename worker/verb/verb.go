// Package verb answers the requests of SQL callers. The verb of a request names what the request asks for. Each file
// registers the verbs of one subject, with the number of processes that a request names, the gate that a request passes
// (it waits for resources of the worker), and the function that makes the answer. Each file also has the words of its
// errors.
//
// The package does not know how requests arrive, and does not notice restarts of the server. Package worker handles
// both.
package verb

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/worker/authz"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/measure/runningplan"
	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/serve/metrics"
	"pg_stat_backtrace/worker/serve/queue"
	"pg_stat_backtrace/worker/serve/spool"
)

// Verb is one kind of request. verb_function in sql/src/names.sql has the SQL function whose privilege a request needs.
type Verb struct {
	Name      string
	Processes Processes
	// Queued means that queued requests (pg_request_backtrace), for which no call waits, accept the verb too.
	Queued bool

	// gate waits for the resources that the request needs. The function done gives them back. If gate is nil, the
	// function answer passes the gates itself.
	gate   func(*Service, context.Context, call) (done func(), err error)
	answer func(*Service, context.Context, call) spool.Answer
}

// Processes is the number of processes that a request must name.
type Processes int

// Numbers of processes. Any includes none.
const (
	Any Processes = iota
	One
)

// call is a request with its settings and the time at which the Service began to answer.
type call struct {
	spool.Request

	options capture.Options
	began   time.Time
}

// verbs has all verbs, by name. Only register changes it.
var verbs = make(map[string]Verb)

// register adds a verb. Names are unique.
func register(v Verb) struct{} {
	if _, taken := verbs[v.Name]; taken {
		panic(fmt.Errorf("two verbs have the name %s", v.Name))
	}
	verbs[v.Name] = v
	return struct{}{}
}

// Names returns the names of all verbs, in order.
func Names() []string {
	names := make([]string, 0, len(verbs))
	for name := range verbs {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Config has the settings and the parts of the worker that verbs need.
type Config struct {
	Log zerolog.Logger
	// Lines bounds the lines of the log about each role.
	Lines *limits.Lines
	// Server returns the running server, or an error if the server does not run.
	Server   func() (cluster.Cluster, error)
	Capturer *capture.Capturer
	// Looker reads from the server the facts on which permissions depend.
	Looker  authz.Looker
	Waits   *waitevent.Timer
	Metrics *metrics.Metrics
	Journal *queue.Journal
	// Limits bound the rate of requests of a role, and Concurrency bounds the captures that run at the same time (0:
	// the default).
	Limits      limits.Rate
	Concurrency int
	// Context is ContextSuperuser, ContextAll or ContextOff; empty: ContextSuperuser.
	Context string
	// TraceFunctions says whether superusers may trace functions.
	TraceFunctions bool
	// Sessions returns how to open sessions for the calibration of plans (see CalibratePlans). If it is nil, plans are
	// not calibrated. CacheDir is the folder for the results; empty: they are not kept.
	Sessions func(*cluster.Cluster) cluster.ConnOptions
	CacheDir string
	// HistoryDir is the directory in which the worker records the history; empty: it does not record.
	HistoryDir string
}

// Service answers requests. Its methods are safe for concurrent use.
type Service struct {
	cfg     Config
	limiter *limits.Limiter
	bounds  *bounds
	// functions are the traces of functions for which SQL callers wait.
	functions functionTraces
	plans     *runningplan.Keeper
	summaries summaries
}

// New makes a Service.
func New(cfg Config) *Service {
	return &Service{
		cfg: cfg, limiter: limits.NewLimiter(cfg.Limits), bounds: newBounds(cfg.Concurrency),
		plans: runningplan.NewKeeper(runningplan.Store{Dir: cfg.CacheDir}, cfg.Log),
	}
}

// Stop ends traces of functions and calibrations of plans, which outlive their requests, and waits until they have
// ended.
func (s *Service) Stop() {
	s.functions.stop()
	s.plans.Stop()
}

// Answer carries out one request: it checks the rate of the role and the settings, passes the gate, and returns the
// verb's answer. Errors are part of the answer.
func (s *Service) Answer(ctx context.Context, req spool.Request) spool.Answer {
	req.Targets = distinct(req.Targets)
	if err := s.charge(req); err != nil {
		return s.refuse(req, err)
	}
	c := call{Request: req, began: time.Now()}
	verb, known := verbs[req.Verb]
	var err error
	switch c.options, err = settings(req.Settings); {
	case err != nil:
		return s.fail(req, c.began, err)
	case !known:
		return s.fail(req, c.began, errUnknownVerb(req.Verb))
	case verb.Processes == One && len(req.Targets) != 1:
		return s.fail(req, c.began, errOneProcess)
	}
	if verb.gate != nil {
		done, err := verb.gate(s, ctx, c)
		if err != nil {
			return s.fail(req, c.began, limits.ErrBusy)
		}
		defer done()
	}
	return verb.answer(s, ctx, c)
}

func errUnknownVerb(name string) error {
	return &render.Fault{
		SQLState: render.NotInPrerequisiteState,
		Message:  fmt.Sprintf("the pg_stat_backtrace worker cannot %q", name),
		Hint:     "Install worker and extension of the same release.",
	}
}

func caller(req spool.Request) authz.Caller {
	return authz.Caller{OID: req.Caller, Superuser: req.Superuser}
}

// distinct returns the process ids in ascending order, each once.
func distinct(pids []int) []int {
	pids = slices.Clone(pids)
	slices.Sort(pids)
	return slices.Compact(pids)
}
