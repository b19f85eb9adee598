package plan

import (
	"fmt"
	"reflect"
	"strings"
	"sync"

	"pg_stat_backtrace/worker/pg/layout"
)

// The versions whose trees were compared with EXPLAIN of a running server.
const (
	oldestMajor = 14
	newestMajor = 19
)

// An UnknownLayoutError means that the structures of a server's version are not known.
type UnknownLayoutError struct{ Major int }

func (e *UnknownLayoutError) Error() string {
	return fmt.Sprintf("the layout of PostgreSQL %d is not known for plans: they are read from versions %d to %d",
		e.Major, oldestMajor, newestMajor)
}

// structures are the offsets of a major version, and its node tags by value.
type structures struct {
	*layout.Layout
	byTag map[uint32]string // "SeqScan"
	major int
}

// knownKinds caches the results of kindsOf, by major version.
//
//nolint:gochecknoglobals // a cache of constants
var knownKinds sync.Map

// kindsOf returns the names of the node tags of a layout, by value.
func kindsOf(major int, l *layout.Layout) map[uint32]string {
	if known, ok := knownKinds.Load(major); ok {
		return known.(map[uint32]string) //nolint:forcetypeassert // the map has no other
	}
	k := map[uint32]string{}
	tags := reflect.ValueOf(&l.Tags).Elem()
	for i := range tags.NumField() {
		o, ok := tags.Field(i).Interface().(layout.Offset)
		if ok && o.Known() {
			name := strings.TrimPrefix(tags.Type().Field(i).Tag.Get("c"), "T_")
			k[uint32(o.Int())] = name // a tag fits into 32 bits
		}
	}
	knownKinds.Store(major, k)
	return k
}

// structuresOf returns the offsets of a major version. The error is an UnknownLayoutError.
func structuresOf(major int) (*structures, error) {
	l, ok := layout.Of(major)
	if !ok || major < oldestMajor || major > newestMajor {
		return nil, &UnknownLayoutError{Major: major}
	}
	s := &structures{Layout: l, major: major, byTag: kindsOf(major, l)}
	for _, o := range s.needed() {
		if !o.Known() {
			return nil, &UnknownLayoutError{Major: major}
		}
	}
	return s, nil
}

// needed returns the offsets that must be known to read trees.
func (s *structures) needed() []layout.Offset {
	return []layout.Offset{
		s.QueryDesc.Operation, s.QueryDesc.Plannedstmt, s.QueryDesc.SourceText, s.QueryDesc.Estate, s.QueryDesc.Planstate,
		s.PlannedStmt.CommandType, s.PlannedStmt.PlanTree, s.PlannedStmt.Rtable,
		s.Plan.StartupCost, s.Plan.TotalCost, s.Plan.PlanRows, s.Plan.PlanWidth, s.Plan.ParallelAware, s.Plan.AsyncCapable,
		s.Plan.PlanNodeId, s.Plan.Lefttree, s.Plan.Righttree, s.Plan.InitPlan,
		s.Scan.Scanrelid, s.IndexScan.Indexid, s.IndexScan.Indexorderdir, s.IndexOnlyScan.Indexid,
		s.IndexOnlyScan.Indexorderdir, s.BitmapIndexScan.Indexid, s.Join.Jointype, s.Agg.Aggstrategy, s.Agg.Aggsplit,
		s.SetOp.Cmd, s.SetOp.Strategy, s.ModifyTable.Operation, s.ModifyTable.NominalRelation,
		s.Append.Appendplans, s.MergeAppend.Mergeplans, s.ForeignScan.Operation, s.SubPlan.PlanName,
		s.RangeTblEntry.Rtekind, s.RangeTblEntry.Relid, s.RangeTblEntry.Alias, s.RangeTblEntry.Eref, s.RangeTblEntry.Ctename,
		s.Alias.Aliasname, s.List.Length, s.List.Elements,
		s.EState.EsRelations, s.EState.EsPlannedstmt,
		s.PlanState.Plan, s.PlanState.State, s.PlanState.ExecProcNode, s.PlanState.ExecProcNodeReal, s.PlanState.Lefttree,
		s.PlanState.Righttree, s.PlanState.InitPlan, s.PlanState.SubPlan,
		s.SubqueryScanState.Subplan, s.AppendState.Appendplans, s.AppendState.AsNplans, s.MergeAppendState.Mergeplans,
		s.MergeAppendState.MsNplans, s.BitmapAndState.Bitmapplans, s.BitmapAndState.Nplans, s.BitmapOrState.Bitmapplans,
		s.BitmapOrState.Nplans, s.CteScanState.Cteplanstate, s.SubPlanState.Subplan, s.SubPlanState.Planstate,
		s.CustomScanState.CustomPs, s.IndexScanState.IssRelationDesc, s.IndexOnlyScanState.IossRelationDesc,
		s.BitmapIndexScanState.BissRelationDesc, s.RelationData.RdRel, s.RelationData.RdId, s.FormDataPgClass.Relname,
		s.Tags.PlannedStmt, s.Tags.EState, s.Tags.List, s.Tags.SubPlan, s.Tags.SubPlanState, s.Tags.RangeTblEntry, s.Tags.Alias,
	}
}
