package verb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/measure/runningplan"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/plan"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/serve/spool"
)

// The verbs for the plan that a process executes; see pg_get_running_plan in sql/.
const (
	verbPlan     = "plan"
	verbPlanJSON = "plan_json"
)

var (
	_ = registerPlan(verbPlan)
	_ = registerPlan(verbPlanJSON)
)

func registerPlan(name string) struct{} { //nolint:unparam // for variables of the package
	return register(Verb{
		Name: name, Processes: One, answer: (*Service).answerPlan,
		gate: func(s *Service, ctx context.Context, c call) (func(), error) {
			return s.bounds.trees.Acquire(ctx, user(caller(c.Request)), 1)
		},
	})
}

// hiddenLevel is the reason that the caller sees in place of the plan of an inner statement.
const hiddenLevel = "a statement of a function, a cursor or a parallel worker: not shown to this role"

// answerPlan answers with the plan as text or as a JSON document. The caller needs the right to see
// the process's query; see authz.DecidePlan.
func (s *Service) answerPlan(ctx context.Context, c call) spool.Answer {
	req := c.Request
	text, err := s.runningPlan(ctx, req)
	a := spool.Answer{Text: text}
	if err != nil {
		a = planFailure(req.Targets[0], err)
	}
	s.log1(req, func(e *zerolog.Event) {
		e.Int("pid", req.Targets[0]).Dur("took_ms", time.Since(c.began))
		if err != nil {
			e.Str("sqlstate", a.SQLState).AnErr("error", err).Msg("request failed")
			return
		}
		e.Msg("request")
	})
	s.cfg.Journal.Add(req.Database, journalRow(req, c.began, captured{}, a))
	return a
}

// runningPlan reads the plans that a process executes. Config.Context decides whether the caller sees the plans of
// inner statements, such as the statements of functions.
func (s *Service) runningPlan(ctx context.Context, req spool.Request) (string, error) {
	pid := req.Targets[0]
	server, err := s.cfg.Server()
	if err != nil {
		return "", fmt.Errorf("%w: %w", errNoServer, err)
	}
	target, err := member(server, pid)
	if err != nil {
		return "", err
	}
	defer target.Held.Release()
	if err := s.permit().AllowPlan(ctx, caller(req), pid); err != nil {
		return "", refusal(err, target, endsIn)
	}
	r := &runningplan.Reader{Capturer: s.cfg.Capturer, Proof: func(build string, major int) *plan.Proof {
		return s.provenPlan(&server, build, major)
	}}
	p := r.Read(ctx, target, nil)
	if p.Err != nil {
		return "", p.Err
	}
	p.PID = pid // as the server sees it: target.PID is the id on this host
	if !s.showsStatements(req.Superuser) {
		for i, l := range p.Plans.Levels {
			if l.Inner {
				p.Plans.Levels[i] = &plan.Level{Reason: hiddenLevel}
			}
		}
	}
	if req.Verb == verbPlanJSON {
		text, err := json.Marshal(p)
		return string(portableJSON(text, req.Encoding)), err
	}
	const width = 1 << 10
	return r.Text(p, width), nil
}

// planFailure returns the answer to the SQL caller for an error.
func planFailure(pid int, err error) spool.Answer {
	fault := spool.Answer{Level: "ERROR", SQLState: render.NotInPrerequisiteState}
	var unknown *plan.UnknownLayoutError
	switch {
	case errors.Is(err, capture.ErrNotPostgres), errors.As(err, &unknown):
		fault.Message = fmt.Sprintf("the plan of process with PID %d is not known", pid)
		fault.Detail = "It runs no PostgreSQL server of version 14 to 19 whose structures are known."
	case errors.Is(err, capture.ErrPlanChanges):
		fault.Message = fmt.Sprintf("process with PID %d runs short statements", pid)
		fault.Detail = "Each time its plan was read, another statement ran."
	case errors.Is(err, capture.ErrProgramUnread):
		fault.Message = fmt.Sprintf("the program of process with PID %d was not read in time", pid)
		fault.Hint = "Retry: the worker continues to read it."
	default:
		return failure(pid, err)
	}
	return fault
}

// provenPlan returns the plan.Proof of a build: the fields of its structures that a comparison with EXPLAIN has
// verified. If there is none yet, it begins this comparison (a calibration) and returns nil.
func (s *Service) provenPlan(c *cluster.Cluster, build string, major int) *plan.Proof {
	proof := s.plans.Proof(build, major)
	if proof == nil {
		s.CalibratePlans(c, build)
	}
	return proof
}

// PlanProof returns the plan.Proof of a build that was calibrated before, or nil. It begins no calibration, so it is
// cheap enough for every sample.
func (s *Service) PlanProof(build string, major int) *plan.Proof { return s.plans.Proof(build, major) }

// CalibratePlans begins a calibration of the server's program in the background. See runningplan.Keeper.Calibrate for
// the result. Without Config.Sessions it does nothing and returns 0.
func (s *Service) CalibratePlans(c *cluster.Cluster, build string) (pause time.Duration) {
	if s.cfg.Sessions == nil {
		return 0
	}
	server := *c
	return s.plans.Calibrate(build, c.Version, func(ctx context.Context) (*runningplan.Calibration, error) {
		return s.calibratePlans(ctx, &server)
	})
}

// calibratePlans compares plans with EXPLAIN in two sessions of the worker. It fails if fewer connection slots are free than
// the worker leaves to others (cluster.CheckSpare). It ends when the server stops, because a smart shutdown waits for all
// sessions.
func (s *Service) calibratePlans(ctx context.Context, c *cluster.Cluster) (*runningplan.Calibration, error) {
	config, err := cluster.ReadingConfig(s.cfg.Sessions(c), "worker")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for c.Alive() && !c.Stopping() {
			select {
			case <-ctx.Done():
				return
			case <-time.After(host.AlignedDelay(host.AlignedInterval)):
			}
		}
		cancel()
	}()
	const share = 0.1 // of the time of one processor
	calibrator := &runningplan.Calibrator{
		Share:    share,
		Capturer: s.cfg.Capturer, Contains: c.Contains,
		Connect: func(ctx context.Context) (*pgx.Conn, error) {
			conn, err := cluster.Connect(ctx, config.Copy())
			if err != nil {
				return nil, err
			}
			err = c.Welcome(ctx, conn)
			if err == nil {
				err = cluster.CheckSpare(ctx, conn)
			}
			if err != nil {
				_ = conn.Close(ctx)
				return nil, err
			}
			return conn, nil
		},
	}
	return calibrator.Run(ctx)
}
