package cli

import (
	"io"
	"slices"

	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/state"
	"pg_stat_backtrace/worker/report/table"
)

// fittedColumns says how the columns of header adapt to a terminal. Columns
// with less use in an incident are left out first, the column by which the processes are sorted never.
func (f *activityFlags) fittedColumns(header []string) []table.Column {
	columns := map[string]table.Column{
		"pid": {}, "host_pid": {}, "backend_type": {Drop: 20}, "database": {Least: 8, Drop: 7}, "user": {Least: 8, Drop: 8},
		"application_name": {Least: 8, Drop: 3}, "client": {Least: 9, Drop: 12}, "state": {Least: 19}, "xact_age": {Drop: 5},
		"query_age": {Drop: 10}, "state_age": {Drop: 11}, "cpu": {Drop: 1}, "phrase": {Least: 20, Drop: 6},
		"function": {Least: 16, Drop: 9}, "wait_event": {Least: 14, Drop: 4}, "wait_age": {Drop: 13},
		"blocked_by": {Least: 10, Drop: 2}, "query": {Least: 24},
	}
	var list []table.Column
	for _, name := range header {
		c := columns[name]
		if name == f.sort+"_age" || f.sort == "transaction" && name == "xact_age" || name == f.sort {
			c.Drop = 0
		}
		list = append(list, c)
	}
	return list
}

// fitted prints the processes for a terminal with width columns, and which columns had no room.
func (f *activityFlags) fitted(out io.Writer, m *moment.Moment, width int) error {
	header := f.header(m)
	kind, status, query := slices.Index(header, "backend_type"), slices.Index(header, "state"), slices.Index(header, "query")
	w := table.Fit(out, table.Options{Width: width, Empty: "-"}, f.fittedColumns(header))
	w.Row(header...)
	for i := range m.Sessions {
		s := &m.Sessions[i]
		row := f.row(m, s)
		row[kind] = ""
		if s.Type != state.ClientBackend && (s.State == "" || s.State == "active") {
			row[status] = s.Type
		}
		if f.widthGiven {
			row[query] = table.Cut(row[query], f.width)
		}
		w.Row(row...)
	}
	left, err := w.Flush()
	if err != nil {
		return err
	}
	return table.NoRoom(out, left)
}
