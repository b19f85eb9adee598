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
	"pg_stat_backtrace/worker/doctor"
	"pg_stat_backtrace/worker/history/incident"
	"pg_stat_backtrace/worker/measure/functrace"
	"pg_stat_backtrace/worker/measure/runningplan"
	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/pg/plan"
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
		"history":       {reflect.TypeFor[historySweep](), reflect.TypeFor[historySummary](), reflect.TypeFor[historyComparison]()},
		"incident":      {reflect.TypeFor[incident.Incident]()},
		"incident-list": {reflect.TypeFor[incidentLine]()},
		"memory":        {reflect.TypeFor[jsonMemory](), reflect.TypeFor[serverMemory]()},
		"plan":          {reflect.TypeFor[runningplan.JSONProcess]()},
		"profile":       {reflect.TypeFor[profileStats]()},
		"rules-list":    {reflect.TypeFor[rulesDocument]()},
		"symbols":       {reflect.TypeFor[symbolsReport]()},
		"top":           {reflect.TypeFor[view.Data](), reflect.TypeFor[serverList]()},
		"trace":         {reflect.TypeFor[functrace.JSONEvent](), reflect.TypeFor[functrace.JSONTotals]()},
		"waits":         {reflect.TypeFor[waitevent.JSONReport]()},
	}
}

// schemas makes the schemas of all commands.
func schemas(t *testing.T, g *jsonschema.Generator) map[string][]byte {
	t.Helper()
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
			if err := os.WriteFile(file, want, 0o644); err != nil { //nolint:gosec // public
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

// TestSchemasOfOutputs runs each command beside a server with sessions that block each other, and beside an idle one.
func TestSchemasOfOutputs(t *testing.T) {
	pgtest.One(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{Conf: []string{"max_connections = 20", "autovacuum = off", "jit = off"}})
		recorder, dir := recorderOf(t, s)
		file := filepath.Join(t.TempDir(), "incident.json")
		compiled := compile(t, schemas(t, &jsonschema.Generator{Root: "../..", Strict: true}))
		seen := map[string]bool{}
		check := func(command, arguments string, more ...string) {
			t.Helper()
			arguments = strings.ReplaceAll(strings.ReplaceAll(arguments, "DATA", s.DataDir), "RECORDED", "--record-dir "+dir)
			words := append(strings.Fields(arguments), more...)
			out, errOut := runAlone(t, words)
			if strings.Contains(errOut, "CAP_BPF") && os.Geteuid() != 0 {
				t.Log(arguments, errOut)
				seen[command] = true
				return
			}
			if command == "incident" {
				text, _ := os.ReadFile(file)
				out = string(text)
			}
			if n := validate(t, compiled[command], arguments, out); n == 0 {
				t.Errorf("%s: nothing was printed, %s", arguments, errOut)
			}
			seen[command] = true
		}
		check("activity", "activity -f json -D DATA")
		check("top", "top -f json -n 1 -D DATA")
		pids := firstMinuteIncidents(t, s)
		now := time.Now().Add(-time.Minute)
		for _, age := range []time.Duration{time.Hour, 2 * time.Second, time.Second} { // an hour ago for --compare
			if err := recorder.Sweep(now.Add(-age), 0); err != nil {
				t.Fatal(err)
			}
		}
		shop, report, etl, vacuum := strconv.Itoa(pids["shop"]), strconv.Itoa(pids["report"]), strconv.Itoa(pids["etl"]), strconv.Itoa(pids["vacuum"])
		check("activity", "activity -f json -D DATA")
		check("capture", "capture -f json --threads -D DATA")
		check("capture", "capture --stats --repeat 3", shop)
		check("doctor", "doctor -f json -D DATA")
		check("history", "history -f json RECORDED")
		check("history", "history -f json --by wait,user RECORDED")
		check("history", "history -f json --compare -1h RECORDED")
		check("incident", "incident take -D DATA RECORDED -o", file)
		keepIncident(t, dir, file)
		check("incident-list", "incident list -f json RECORDED")
		check("memory", "memory -f json", etl)
		check("memory", "memory -f json -D DATA")
		check("plan", "plan -f json", report, vacuum)
		check("profile", "profile --stats --duration 200ms", report)
		check("rules-list", "rules list -f json")
		check("symbols", "symbols --json", report)
		check("top", "top -f json -n 2 -D DATA")
		check("top", "top -f json -n 1 -D DATA --pid", shop)
		check("top", "top -f json -n 1 --all")
		check("trace", "trace -f json --duration 300ms libc:read", report)
		check("waits", "waits -f json --method sampled --duration 300ms -D DATA")
		check("waits", "waits -f json --duration 300ms -D DATA")
		for command := range documentTypes() {
			if !seen[command] {
				t.Errorf("no output of %s was compared with its schema", command)
			}
		}
	})
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

// runAlone runs a command in a separate process, which may change its user. It returns both outputs.
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
