package runningplan_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/measure/runningplan"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/plan"
)

// calibrator returns a calibrator for a server.
func calibrator(t *testing.T, server *pgtest.Server) *runningplan.Calibrator {
	t.Helper()
	c, err := capture.New(capture.Config{LinesWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	found, err := cluster.ByDataDir(server.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	return &runningplan.Calibrator{
		Capturer: c, Contains: found.Contains,
		Connect: func(ctx context.Context) (*pgx.Conn, error) {
			return pgx.Connect(ctx, server.DSN(server.User, "postgres"))
		},
	}
}

// TestCalibration: with the right layout, nothing differs, and the usual fields are proven.
func TestCalibration(t *testing.T) {
	pgtest.One(t, func(t *testing.T, bin string) {
		server := pgtest.Start(t, bin, pgtest.Options{})
		got, err := calibrator(t, server).Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, difference := range got.Differences {
			t.Errorf("differs: %s", difference)
		}
		for _, skipped := range got.Skipped {
			t.Errorf("skipped: %s", skipped)
		}
		if got.Major != pgtest.Major(t, bin) {
			t.Errorf("version %d, build %q", got.Major, got.Build)
		}
		for _, name := range []string{
			plan.StartupCost, plan.TotalCost, plan.PlanRows, plan.PlanWidth, plan.ParallelAware, plan.RelationName, plan.Alias,
			plan.CTEName, plan.JoinType, plan.SubplanName, plan.QueryText, plan.RowsReturned, plan.RowsSoFar, plan.LoopsSoFar,
			plan.RunningNode, "Agg/Strategy", "Agg/Partial Mode", "SetOp/Strategy", "SetOp/Command", "IndexScan/Index Name",
			"IndexScan/Scan Direction", "IndexOnlyScan/Index Name", "IndexOnlyScan/Scan Direction", "BitmapIndexScan/Index Name",
			"SeqScan/Scan Block", "SeqScan/Scan Blocks Total", "Hash/Hash Batches", "Hash/Hash Batch", "Hash/Hash Rows",
			"Hash/Hash Memory Usage", "Sort/Sort Rows", "Sort/Sort Disk", "Sort/Sort Memory", "Agg/HashAgg Groups", "Append/Subplan",
			"Append/Subplans", "Hash/Shared Hash Batches", "Hash/Shared Hash Buckets", "Hash/Shared Hash Rows",
			"Gather/Workers Planned", "BitmapHeapScan/Exact Heap Blocks",
		} {
			if !slices.Contains(got.Proof.Fields, name) {
				t.Errorf("%s is not proven", name)
			}
		}
		for _, kind := range []string{"Append", "MergeAppend", "BitmapOr", "SubqueryScan", "RecursiveUnion", "WindowAgg"} {
			if !slices.Contains(got.Proof.Kinds, kind) {
				t.Errorf("%s is not proven", kind)
			}
		}
		t.Logf("processor time in the server: %s", got.Cost)
		if got.Cost <= 0 {
			t.Error("the cost is not known")
		}
		t.Logf("%q\n%q", got.Proof.Kinds, got.Proof.Fields)
	})
}

// TestCalibrationOnStandby: a standby, which can only read, proves the same fields.
func TestCalibrationOnStandby(t *testing.T) {
	pgtest.One(t, func(t *testing.T, bin string) {
		server := pgtest.Start(t, bin, pgtest.Options{Standby: true})
		c := calibrator(t, server)
		c.Share = 0.5
		got, err := c.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Differences) > 0 || len(got.Skipped) > 0 || !slices.Contains(got.Proof.Fields, plan.TotalCost) ||
			!slices.Contains(got.Proof.Fields, plan.RunningNode) {
			t.Errorf("%+v", got)
		}
	})
}
