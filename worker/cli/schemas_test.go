package cli

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	validator "github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/spf13/cobra"

	"pg_stat_backtrace/internal/jsonschema"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/cli/historycmd"
	"pg_stat_backtrace/worker/cli/measurecmd"
	"pg_stat_backtrace/worker/cli/topcmd"
	"pg_stat_backtrace/worker/doctor"
	"pg_stat_backtrace/worker/history/incident"
	"pg_stat_backtrace/worker/measure/functrace"
	"pg_stat_backtrace/worker/measure/runningplan"
	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/pg/plan"
	"pg_stat_backtrace/worker/report/profilefmt"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/screen/view"
)

var updateSchemas = flag.Bool("update-schemas", false, "write doc/schemas")

const schemasFolder = "../../doc/schemas"

// documentTypes returns what each command prints as JSON: a document of one of the types in each line.
func documentTypes() map[string][]reflect.Type {
	return map[string][]reflect.Type{
		"activity":      {reflect.TypeFor[activityDocument]()},
		"capture":       {reflect.TypeFor[render.JSONTrace](), reflect.TypeFor[statsDocument]()},
		"doctor":        {reflect.TypeFor[doctor.JSONReport]()},
		"history":       {reflect.TypeFor[historycmd.Sweep](), reflect.TypeFor[historycmd.Summary](), reflect.TypeFor[historycmd.Comparison]()},
		"incident":      {reflect.TypeFor[incident.Incident]()},
		"incident-list": {reflect.TypeFor[historycmd.IncidentLine]()},
		"memory":        {reflect.TypeFor[measurecmd.MemoryDocument](), reflect.TypeFor[measurecmd.ServerMemoryDocument](), reflect.TypeFor[profilefmt.JSONProfile]()},
		"plan":          {reflect.TypeFor[runningplan.JSONProcess]()},
		"profile":       {reflect.TypeFor[measurecmd.ProfileStats](), reflect.TypeFor[profilefmt.JSONProfile]()},
		"report":        {reflect.TypeFor[profilefmt.JSONProfile]()},
		"rules-list":    {reflect.TypeFor[historycmd.RulesDocument]()},
		"symbols":       {reflect.TypeFor[symbolsReport]()},
		"top":           {reflect.TypeFor[view.Data](), reflect.TypeFor[topcmd.ServerList]()},
		"trace":         {reflect.TypeFor[functrace.JSONEvent](), reflect.TypeFor[functrace.JSONTotals]()},
		"waits":         {reflect.TypeFor[waitevent.JSONReport](), reflect.TypeFor[profilefmt.JSONProfile]()},
	}
}

// schemas makes the schemas of all commands.
func schemas(t *testing.T, g *jsonschema.Generator) map[string][]byte {
	t.Helper()
	g.Common = commonMembers()
	all := map[string][]byte{}
	for command, types := range documentTypes() {
		g.Given, g.Defs = nil, nil
		if command == "plan" {
			g.Given, g.Defs = planSchemas()
		}
		title := "pg_stat_backtrace " + strings.ReplaceAll(command, "-", " ")
		var err error
		if all[command], err = g.Schema(title, "A document that the command prints as JSON.", types...); err != nil {
			t.Fatalf("%s: %s", command, err)
		}
	}
	return all
}

// commonMembers describes members whose name says the same in all documents.
func commonMembers() map[string]string {
	common := map[string]string{
		"pid": "A process id.", "server_version": "The major version of PostgreSQL.", "data_directory": "The data directory of the server.",
		"xid": "A transaction id.", "gid": "The name of a prepared transaction.", "error": "Why a part is missing.",
		"problem": "Why a part is missing.", "time": "When the data was read.", "tid": "A thread id.", "module": "The name of the file with the code.",
	}
	for _, name := range []string{
		"application_name", "backend_start", "backend_type", "leader_pid", "query", "query_id", "query_start", "state", "state_change", "wait_event",
		"wait_event_type", "xact_start",
	} {
		common[name] = "As in pg_stat_activity."
	}
	return common
}

// planSchemas returns the types that print what EXPLAIN (FORMAT JSON) prints, and their schemas.
func planSchemas() (map[reflect.Type]jsonschema.Object, jsonschema.Object) {
	refer := func(name string) jsonschema.Object { return jsonschema.Object{"$ref": "#/$defs/" + name} }
	number, text, boolean := jsonschema.Object{"type": "number"}, jsonschema.Object{"type": "string"}, jsonschema.Object{"type": "boolean"}
	node := jsonschema.Object{
		"type": "object", "description": "A node of a plan, with the members of EXPLAIN (FORMAT JSON).", "required": []string{"Node Type"},
		"properties": jsonschema.Object{
			"Node Type": text, "Startup Cost": number, "Total Cost": number, "Plan Rows": number, "Plan Width": number,
			"Rows So Far": number, "Loops So Far": number, "Running": boolean, "Running Below": boolean, "Active": boolean,
			"Plans": jsonschema.Object{"type": "array", "items": refer("plan.Node")},
		},
	}
	level := jsonschema.Object{
		"type": "object", "description": "A statement, with the members of EXPLAIN (FORMAT JSON).", "additionalProperties": false,
		"properties": jsonschema.Object{"Query Text": text, "Rows Returned": number, "Plan": refer("plan.Node"), "Missing": text},
	}
	return map[reflect.Type]jsonschema.Object{
		reflect.TypeFor[plan.Level](): refer("plan.Level"), reflect.TypeFor[runningplan.Process](): refer("runningplan.Process"),
	}, jsonschema.Object{"plan.Node": node, "plan.Level": level}
}

// TestSchemas compares doc/schemas with what the commands can print. With -update-schemas, it writes the folder.
func TestSchemas(t *testing.T) {
	g := &jsonschema.Generator{Root: "../.."}
	all := schemas(t, g)
	for command, want := range all {
		file := filepath.Join(schemasFolder, command+".schema.json")
		if *updateSchemas {
			if err := os.WriteFile(file, want, 0o644); err != nil { // public
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not the schema of what the command prints (%v): run go test ./worker/cli -run TestSchemas -update-schemas", file, err)
		}
		checkNames(t, command, want)
	}
	files, err := filepath.Glob(schemasFolder + "/*.json")
	if err != nil || len(files) != len(all) {
		t.Errorf("%d files, %d commands, %v", len(files), len(all), err)
	}
	checkCommands(t, newRoot("test"))
	g.Strict = true
	for command, schema := range compile(t, schemas(t, g)) {
		for _, typ := range documentTypes()[command] {
			v := reflect.New(typ).Elem()
			fillMembers(v)
			document, err := json.Marshal(v.Interface())
			if err != nil {
				t.Fatalf("%s: %s", typ, err)
			}
			validate(t, schema, typ.String()+" with all members", string(document))
		}
		if schema.Validate(map[string]any{"unknown": 1}) == nil {
			t.Errorf("%s: the schema allows everything", command)
		}
	}
}

// checkCommands expects a schema of each command that prints JSON.
func checkCommands(t *testing.T, c *cobra.Command) {
	t.Helper()
	for _, sub := range c.Commands() {
		checkCommands(t, sub)
	}
	format := c.Flags().Lookup("format")
	if c.Flags().Lookup("json") == nil && (format == nil || !regexp.MustCompile(`\bjson\b`).MatchString(format.Usage)) {
		return
	}
	_, name, _ := strings.Cut(c.CommandPath(), " ")
	name = strings.TrimSuffix(strings.ReplaceAll(name, " ", "-"), "-show") // "incident take" prints the same
	if documentTypes()[name] == nil {
		t.Errorf("%s prints JSON without a schema", c.CommandPath())
	}
}

// checkNames expects names in snake case, and a unit in the name of each time, size and fraction.
func checkNames(t *testing.T, command string, schema []byte) {
	t.Helper()
	name := regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	unit := regexp.MustCompile(`(^|_)(ns|us|ms|kb|bytes|seconds|percent|sessions|processors)($|_)`)
	measured := regexp.MustCompile(`size|memory|heap|duration|delay|elapsed|period|time$|_age$`)
	// Fractions without a unit: quantiles, whose parent has the unit, and figures of the planner.
	unitless := []string{"p50", "p99", "max", "plan_rows", "total_cost"}
	var document struct {
		Defs map[string]struct {
			Properties map[string]struct {
				Type       any
				Deprecated bool
			}
		} `json:"$defs"`
	}
	if err := json.Unmarshal(schema, &document); err != nil {
		t.Fatal(err)
	}
	for def, d := range document.Defs {
		if def == "plan.Node" || def == "plan.Level" || strings.Contains(def, ".former") {
			continue // names of EXPLAIN, and names of former versions
		}
		for property, p := range d.Properties {
			kind := fmt.Sprint(p.Type)
			switch {
			case p.Deprecated:
			case !name.MatchString(property):
				t.Errorf("%s: %s.%s is not in snake case", command, def, property)
			case unit.MatchString(property) || slices.Contains(unitless, property):
			case strings.Contains(kind, "number"), strings.Contains(kind, "integer") && measured.MatchString(property):
				t.Errorf("%s: %s.%s has no unit in its name", command, def, property)
			}
		}
	}
}

// compile returns the validator of each command.
func compile(t *testing.T, all map[string][]byte) map[string]*validator.Schema {
	t.Helper()
	compiled := map[string]*validator.Schema{}
	for command, text := range all {
		document, err := validator.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		c := validator.NewCompiler()
		c.AssertFormat()
		if err := c.AddResource(command, document); err != nil {
			t.Fatal(err)
		}
		if compiled[command], err = c.Compile(command); err != nil {
			t.Fatalf("%s: %s", command, err)
		}
	}
	return compiled
}

// validate checks each document of an output, and returns how many there are.
func validate(t *testing.T, schema *validator.Schema, what, output string) int {
	t.Helper()
	n := 0
	d := json.NewDecoder(strings.NewReader(output))
	d.UseNumber()
	for d.More() {
		var document any
		if err := d.Decode(&document); err != nil {
			t.Fatalf("%s: %s in\n%s", what, err, output)
		}
		if err := schema.Validate(document); err != nil {
			t.Errorf("%s: %s\n%v", what, err, document)
		}
		n++
	}
	return n
}

// fillMembers sets all members of a value. Within a value, types that contain themselves end, and types that print their own JSON
// stay empty.
func fillMembers(v reflect.Value, within ...reflect.Type) {
	switch v.Kind() {
	case reflect.Struct:
		switch {
		case v.Type() == reflect.TypeFor[time.Time]():
			v.Set(reflect.ValueOf(time.Unix(1, 0)))
		case !v.Addr().Type().Implements(reflect.TypeFor[json.Marshaler]()):
			fillFields(v, append(within, v.Type()))
		}
	case reflect.Pointer:
		if !slices.Contains(within, v.Type().Elem()) {
			v.Set(reflect.New(v.Type().Elem()))
			fillMembers(v.Elem(), within...)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 0, 1))
		e := reflect.New(v.Type().Elem()).Elem()
		if fillMembers(e, within...); !e.IsZero() {
			v.Set(reflect.Append(v, e))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		e := reflect.New(v.Type().Elem()).Elem()
		fillMembers(e, within...)
		v.SetMapIndex(reflect.ValueOf("key").Convert(v.Type().Key()), e)
	case reflect.Array:
		for i := range v.Len() {
			fillMembers(v.Index(i), within...)
		}
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(1.5)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Interface:
		v.Set(reflect.ValueOf("any"))
	default:
		panic("members of kind " + v.Kind().String() + " cannot be set")
	}
}

func fillFields(v reflect.Value, within []reflect.Type) {
	for i := range v.NumField() {
		switch f := v.Field(i); {
		case f.CanSet() && v.Type().Field(i).Tag.Get("json") != "-":
			fillMembers(f, within...)
		case v.Type().Field(i).Anonymous: // its members are exported
			fillFields(f, within)
		}
	}
}

// outputs compares what the commands print with their schemas.
type outputs struct {
	server   *pgtest.Server
	recorded string // the folder with recorded files
	schemas  map[string]*validator.Schema
	seen     map[string]bool
}

func newOutputs(t *testing.T, s *pgtest.Server) *outputs {
	t.Helper()
	return &outputs{s, "", compile(t, schemas(t, &jsonschema.Generator{Root: "../..", Strict: true})), map[string]bool{}}
}

// Check runs a command, and expects at least one document.
func (o *outputs) check(t *testing.T, schema, arguments string, more ...string) {
	t.Helper()
	arguments = strings.ReplaceAll(strings.ReplaceAll(arguments, "DATA", o.server.DataDir), "RECORDED", "--record-dir "+o.recorded)
	words := append(strings.Fields(arguments), more...)
	var out, errOut string
	if schema == "doctor" { // it becomes the server's user
		out, errOut = runAlone(t, words)
	} else {
		const tries = 20 // on a quiet server, no wait may end meanwhile
		for range tries {
			if _, out, errOut = run(t, words...); !strings.Contains(errOut, "no stack of all waits") {
				break
			}
		}
	}
	o.seen[schema] = true
	if os.Geteuid() != 0 && strings.Contains(errOut, "CAP_BPF") {
		t.Logf("not compared, because of missing rights: %s", arguments)
	} else if validate(t, o.schemas[schema], arguments, out) == 0 {
		t.Errorf("%s: nothing was printed, %s", arguments, errOut)
	}
}

// checkIdle runs commands while the server has nothing to do: lists are empty.
func (o *outputs) checkIdle(t *testing.T) {
	t.Helper()
	o.check(t, "activity", "activity -f json -D DATA")
	o.check(t, "top", "top -f json -n 1 -D DATA")
}

// checkIncidents runs all commands beside the incidents of doc/first-minute.md.
func (o *outputs) checkIncidents(t *testing.T, pids map[string]int) {
	t.Helper()
	pid := func(application string) string { return strconv.Itoa(pids[application]) }
	r, dir := recorderOf(t, o.server)
	o.recorded = dir
	now := time.Now()
	for _, age := range []time.Duration{time.Hour + 2*time.Second, 2 * time.Second} { // the first for --compare
		sweepAt(t, r, dir, now.Add(-age))
	}
	o.check(t, "activity", "activity -f json -D DATA")
	o.check(t, "capture", "capture -f json --threads", pid("shop"), pid("vacuum"))
	o.check(t, "capture", "capture --stats --repeat 3", pid("shop"))
	o.check(t, "history", "history -f json RECORDED")
	o.check(t, "history", "history -f json --by wait,user RECORDED")
	since := now.Add(-time.Minute)
	o.check(t, "history", "history -f json RECORDED --since "+since.Format(time.RFC3339)+" --until "+now.Format(time.RFC3339)+
		" --compare "+since.Add(-time.Hour).Format(time.RFC3339))
	file := filepath.Join(t.TempDir(), "incident.json")
	status, _, errOut := run(t, "incident", "take", "-D", o.server.DataDir, "--record-dir", dir, "-o", file, "--profile", "1s")
	if status != exitOK {
		t.Fatal(errOut)
	}
	for _, want := range []string{"reading the sessions of " + o.server.DataDir, "sampling all processes for 1s", "wrote " + file + "; why it was taken: jq"} {
		if !strings.Contains(errOut, want) {
			t.Errorf("incident take reports %q, not %q", errOut, want)
		}
	}
	keepIncident(t, dir, file)
	o.check(t, "incident", "incident show -f json RECORDED last")
	o.check(t, "incident-list", "incident list -f json RECORDED")
	o.check(t, "memory", "memory -f json", pid("etl"))
	o.check(t, "memory", "memory -f json -D DATA")
	o.check(t, "plan", "plan -f json", pid("report"), pid("vacuum"))
	o.check(t, "memory", "memory --allocations -f json --duration 300ms", pid("report"))
	o.check(t, "profile", "profile --stats --duration 200ms", pid("report"))
	profile := filepath.Join(t.TempDir(), "profile.pb.gz")
	o.check(t, "profile", "profile -f json --duration 500ms", pid("report"))
	if status, _, errOut := run(t, "profile", "-f", "pprof", "-d", "300ms", "-o", profile, pid("report")); status == exitOK {
		o.check(t, "report", "report -f json", profile)
	} else if os.Geteuid() == 0 {
		t.Error(errOut)
	}
	o.check(t, "rules-list", "rules list -f json")
	o.check(t, "symbols", "symbols --json", pid("report"))
	o.check(t, "top", "top -f json -n 1 -D DATA --pid", pid("shop"))
	o.check(t, "top", "top -f json -n 1 --all")
	o.check(t, "trace", "trace -f json --duration 300ms libc:read", pid("report"))
	o.check(t, "waits", "waits -f json --method sampled --duration 300ms -D DATA")
	o.check(t, "waits", "waits -f json --duration 300ms -D DATA")
	o.check(t, "waits", "waits -f json --stacks 1/1 --duration 300ms -D DATA")
	o.check(t, "doctor", "doctor -f json -D DATA")
	for command := range documentTypes() {
		if !o.seen[command] {
			t.Errorf("no output of %s was compared with its schema", command)
		}
	}
}

// keepIncident puts an incident from a file into a directory of recorded files.
func keepIncident(t *testing.T, dir, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	var i incident.Incident
	if err == nil {
		err = json.Unmarshal(text, &i)
	}
	if err == nil {
		d := incident.Dir{Path: incident.DirOf(dir, i.Server.SystemID), Keep: 1, Size: 1 << 20}
		_, err = d.Write(&i)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// runAlone runs a command that may change its user, in another process. It returns both outputs.
func runAlone(t *testing.T, arguments []string) (string, string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out, errOut strings.Builder
	command := exec.CommandContext(t.Context(), exe)
	command.Env = append(os.Environ(), topVariable+"="+strings.Join(arguments, "\n"))
	command.Stdout, command.Stderr = &out, &errOut
	_ = command.Run()
	return out.String(), errOut.String()
}
