package plan

import (
	"strings"

	"pg_stat_backtrace/worker/moment"
)

// The versions whose views are known.
const (
	oldestProgress = 14
	newestProgress = 19
)

// CommandColumn is a column of a CommandReport. Value is an int64, a string, or a float64 in milliseconds.
type CommandColumn struct {
	Name  string
	Value any
}

// CommandReport is a row of a view pg_stat_progress_*, in the order of the view. The view's columns about the process and its
// database are left out. TargetOID is the view's column relid, 0 if there is none.
type CommandReport struct {
	View      string // "vacuum"
	Command   string // "VACUUM"
	TargetOID uint32
	Target    string // name of this relation; empty: not known. The caller of Report sets it.
	Columns   []CommandColumn
}

// Phase returns the phase of the command, "" if it is not known.
func (r *CommandReport) Phase() string {
	for _, c := range r.Columns {
		if text, ok := c.Value.(string); ok && c.Name == "phase" {
			return text
		}
	}
	return ""
}

// column describes a column of a view: the number of its parameter in moment.Progress, from 1 on, and the words for its
// values 0, 1 and so on, separated by "|". A value without a word is left out. If words is empty, the column is a
// number.
type column struct {
	name  string
	param int
	words string
	// from and to are the first and the last major version with this column; 0: no limit.
	from, to int
	kind     kind
}

type kind int

const (
	number   kind = iota
	optional      // -1 stands for an unknown value
	nanos         // nanoseconds, shown in milliseconds
)

type view struct {
	name, command string
	columns       []column
}

// numbersOf returns the names of the views by the number of the command (enum ProgressCommandType).
func numbersOf(major int) []string {
	const repack = 19
	if major >= repack {
		return []string{"", "vacuum", "analyze", "create_index", "basebackup", "copy", "repack"}
	}
	return []string{"", "vacuum", "analyze", "cluster", "create_index", "basebackup", "copy"}
}

// DescribeCommand returns the progress that a process reports, with the names of the view's columns. It returns nil if
// p is nil, or if the version or the command is not known.
func DescribeCommand(major int, p *moment.Progress) *CommandReport {
	if p == nil || major < oldestProgress || major > newestProgress {
		return nil
	}
	numbers := numbersOf(major)
	if p.Command <= 0 || p.Command >= len(numbers) {
		return nil
	}
	name := numbers[p.Command]
	for i := range views {
		if v := &views[i]; v.name == name {
			return v.report(major, p)
		}
	}
	return nil
}

func (v *view) report(major int, p *moment.Progress) *CommandReport {
	r := &CommandReport{View: v.name, Command: v.command, TargetOID: p.TargetOID}
	for i := range v.columns {
		c := &v.columns[i]
		if c.from != 0 && major < c.from || c.to != 0 && major > c.to {
			continue
		}
		n := p.Params[c.param-1]
		if c.words != "" {
			words := strings.Split(c.words, "|")
			if n < 0 || n >= int64(len(words)) || words[n] == "" {
				continue
			}
			text := words[n]
			if text == "building index" {
				text += subphase(p)
			}
			if c.name == "command" {
				r.Command = text
			}
			r.Columns = append(r.Columns, CommandColumn{Name: c.name, Value: text})
			continue
		}
		switch {
		case c.kind == optional && n == -1:
		case c.kind == nanos:
			const perMilli = 1_000_000
			r.Columns = append(r.Columns, CommandColumn{Name: c.name, Value: float64(n) / perMilli})
		default:
			r.Columns = append(r.Columns, CommandColumn{Name: c.name, Value: n})
		}
	}
	return r
}

// subphase returns the phase of building a B-tree, as the view adds it. Other kinds of indexes have no names for their
// phases.
func subphase(p *moment.Progress) string {
	const method, methodAt, btree = 9, 11, 403
	names := []string{"", "initializing", "scanning table", "sorting live tuples", "sorting dead tuples", "loading tuples in tree"}
	n := p.Params[methodAt-1]
	if p.Params[method-1] != btree || n <= 0 || n >= int64(len(names)) {
		return ""
	}
	return ": " + names[n]
}

//nolint:gochecknoglobals // a table
var views = []view{
	{"analyze", "ANALYZE", []column{
		{name: "phase", param: 1, words: "initializing|acquiring sample rows|acquiring inherited sample rows|" +
			"computing statistics|computing extended statistics|finalizing analyze"},
		{name: "sample_blks_total", param: 2},
		{name: "sample_blks_scanned", param: 3},
		{name: "ext_stats_total", param: 4},
		{name: "ext_stats_computed", param: 5},
		{name: "child_tables_total", param: 6},
		{name: "child_tables_done", param: 7},
		{name: "current_child_table_relid", param: 8},
		{name: "delay_time", param: 9, from: 18, kind: nanos},
		{name: "started_by", param: 10, from: 19, words: "|manual|autovacuum"},
	}},
	{"vacuum", "VACUUM", []column{
		{name: "phase", param: 1, words: "initializing|scanning heap|vacuuming indexes|vacuuming heap|" +
			"cleaning up indexes|truncating heap|performing final cleanup"},
		{name: "heap_blks_total", param: 2},
		{name: "heap_blks_scanned", param: 3},
		{name: "heap_blks_vacuumed", param: 4},
		{name: "index_vacuum_count", param: 5},
		{name: "max_dead_tuples", param: 6, to: 16},
		{name: "num_dead_tuples", param: 7, to: 16},
		{name: "max_dead_tuple_bytes", param: 6, from: 17},
		{name: "dead_tuple_bytes", param: 7, from: 17},
		{name: "num_dead_item_ids", param: 8, from: 17},
		{name: "indexes_total", param: 9, from: 17},
		{name: "indexes_processed", param: 10, from: 17},
		{name: "delay_time", param: 11, from: 18, kind: nanos},
		{name: "mode", param: 12, from: 19, words: "|normal|aggressive|failsafe"},
		{name: "started_by", param: 13, from: 19, words: "|manual|autovacuum|autovacuum_wraparound"},
	}},
	{"cluster", "CLUSTER", []column{
		{name: "command", param: 1, words: "|CLUSTER|VACUUM FULL"},
		{name: "phase", param: 2, words: "initializing|seq scanning heap|index scanning heap|sorting tuples|writing new heap|" +
			"swapping relation files|rebuilding index|performing final cleanup"},
		{name: "cluster_index_relid", param: 3},
		{name: "heap_tuples_scanned", param: 4},
		{name: "heap_tuples_written", param: 5},
		{name: "heap_blks_total", param: 6},
		{name: "heap_blks_scanned", param: 7},
		{name: "index_rebuild_count", param: 8},
	}},
	{"repack", "REPACK", []column{
		{name: "command", param: 1, words: "|CLUSTER|REPACK|VACUUM FULL"},
		{name: "phase", param: 2, words: "initializing|seq scanning heap|index scanning heap|sorting tuples|writing new heap|" +
			"catch-up|swapping relation files|rebuilding index|performing final cleanup"},
		{name: "repack_index_relid", param: 3},
		{name: "heap_tuples_scanned", param: 4},
		{name: "heap_tuples_inserted", param: 5},
		{name: "heap_tuples_updated", param: 6},
		{name: "heap_tuples_deleted", param: 7},
		{name: "heap_blks_total", param: 8},
		{name: "heap_blks_scanned", param: 9},
		{name: "index_rebuild_count", param: 10},
	}},
	{"create_index", "CREATE INDEX", []column{
		{name: "index_relid", param: 7},
		{name: "command", param: 1, words: "|CREATE INDEX|CREATE INDEX CONCURRENTLY|REINDEX|REINDEX CONCURRENTLY"},
		{name: "phase", param: 10, words: "initializing|waiting for writers before build|building index|" +
			"waiting for writers before validation|index validation: scanning index|index validation: sorting tuples|" +
			"index validation: scanning table|waiting for old snapshots|waiting for readers before marking dead|" +
			"waiting for readers before dropping"},
		{name: "lockers_total", param: 4},
		{name: "lockers_done", param: 5},
		{name: "current_locker_pid", param: 6},
		{name: "blocks_total", param: 16},
		{name: "blocks_done", param: 17},
		{name: "tuples_total", param: 12},
		{name: "tuples_done", param: 13},
		{name: "partitions_total", param: 14},
		{name: "partitions_done", param: 15},
	}},
	{"basebackup", "BASE_BACKUP", []column{
		{name: "phase", param: 1, words: "initializing|waiting for checkpoint to finish|estimating backup size|" +
			"streaming database files|waiting for wal archiving to finish|transferring wal files"},
		{name: "backup_total", param: 2, kind: optional},
		{name: "backup_streamed", param: 3},
		{name: "tablespaces_total", param: 4},
		{name: "tablespaces_streamed", param: 5},
		{name: "backup_type", param: 6, from: 19, words: "|full|incremental"},
	}},
	{"copy", "COPY", []column{
		{name: "command", param: 5, words: "|COPY FROM|COPY TO"},
		{name: "type", param: 6, words: "|FILE|PROGRAM|PIPE|CALLBACK"},
		{name: "bytes_processed", param: 1},
		{name: "bytes_total", param: 2},
		{name: "tuples_processed", param: 3},
		{name: "tuples_excluded", param: 4},
		{name: "tuples_skipped", param: 7, from: 17},
	}},
}
