package moment

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write doc/internals/phrases.md")

// keyed reads a file of testdata whose lines begin with a key.
func keyed(t *testing.T, name string) (keys []string, samples []*sample) {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		key, rest, ok := strings.Cut(strings.TrimSpace(line), "|")
		if !ok || strings.HasPrefix(key, "#") {
			continue
		}
		s, err := parseSample(rest)
		if err != nil {
			t.Fatal(err)
		}
		keys, samples = append(keys, key), append(samples, s)
	}
	return keys, samples
}

func entryOf(t *testing.T, key string) *entry {
	t.Helper()
	for _, e := range compiled().entries {
		if e.key == key {
			return e
		}
	}
	t.Fatalf("no entry has the key %q", key)
	return nil
}

func TestProvenByRealSituations(t *testing.T) {
	keys, samples := keyed(t, "proofs.txt")
	proven := map[string]map[int]bool{}
	for i, s := range samples {
		e := entryOf(t, keys[i])
		if !slices.Contains(e.seen, s.situation) {
			t.Errorf("%s: the situation %s does not prove it", e.key, s.situation)
		}
		if p := MatchPhrase(s.input()); p.Key != e.key {
			t.Errorf("%s: the stack of %s on %d gives %q", e.key, s.situation, s.major, p.Key)
		}
		if proven[e.key] == nil {
			proven[e.key] = map[int]bool{}
		}
		proven[e.key][s.major] = true
	}
	count := 0
	for _, e := range compiled().entries {
		for _, major := range majors {
			// The recorded situations in which a server waits for such a lock have phrases of their own, and none has a parallel apply
			// worker. See TestEachTypeOfLock.
			other := slices.Contains([]string{"lock-other", "lock-transaction", "lock-apply"}, e.key)
			if major >= e.first && !proven[e.key][major] && !other {
				t.Errorf("%s has no recorded stack of PostgreSQL %d", e.key, major)
			}
		}
		if e.kind != kindGeneric {
			count++
		}
	}
	if count < 120 {
		t.Errorf("%d entries without the generic ones: 120 are needed", count)
	}
	t.Logf("%d entries, %d of them generic, %d recorded stacks", len(compiled().entries), len(compiled().entries)-count, len(samples))
}

// TestTypeOfStack takes the types away: the stack of an auxiliary process shows its type, and no stack shows a false type.
func TestTypeOfStack(t *testing.T) {
	keys, samples := keyed(t, "proofs.txt")
	found := map[string]int{}
	for i, s := range samples {
		if got := typeOfStack(s.functions); got != "" && s.backend != "" && got != s.backend {
			t.Errorf("%s: the stack of a %s on %d tells %s", keys[i], s.backend, s.major, got)
		} else if got != "" {
			found[got]++
		}
		in := s.input()
		in.BackendType = ""
		p := MatchPhrase(in)
		if p.Key != keys[i] && len(entryOf(t, keys[i]).types) == 0 || p.Key != keys[i] && typeOfStack(s.functions) != "" {
			t.Errorf("%s: without the type, the stack of %s on %d gives %q", keys[i], s.situation, s.major, p.Key)
		}
	}
	for _, want := range []string{"startup", "checkpointer", "walreceiver", "archiver", "walsender", "autovacuum launcher"} {
		if found[want] == 0 {
			t.Errorf("no recorded stack of a %s tells its type", want)
		}
	}
	t.Log(found)
}

func TestNearMissesNotMatched(t *testing.T) {
	keys, samples := keyed(t, "near.txt")
	for i, s := range samples {
		e := entryOf(t, keys[i])
		if matchesEntry(compiled(), e, s.input()) {
			t.Errorf("%s matches a stack of %s on %d", e.key, s.situation, s.major)
		}
	}
	for _, e := range compiled().entries {
		if !slices.Contains(keys, e.key) {
			t.Errorf("%s has no near miss", e.key)
		}
	}
}

// TestStrippedServersGetTruePhrases: on a stripped server, a stack has fewer names, so another entry may be the best one. That
// entry must also match the stack with all names, as otherwise its phrase would be false.
func TestStrippedServersGetTruePhrases(t *testing.T) {
	_, samples := keyed(t, "proofs.txt")
	same, none, other := 0, 0, 0
	for _, s := range samples {
		full, less := MatchPhrase(s.input()), MatchPhrase(s.stripped())
		switch less.Key {
		case full.Key:
			same++
		case "":
			none++
		default:
			other++
			if !matchesEntry(compiled(), entryOf(t, less.Key), s.input()) {
				t.Errorf("%d, %s: %q without symbols, %q with them", s.major, s.situation, less.Text, full.Text)
			}
		}
	}
	t.Logf("of %d stacks without the names of static functions: %d the same phrase, %d a wider one, %d none", len(samples), same, other, none)
	if same*100 < len(samples)*55 {
		t.Error("fewer than 55 % have the same phrase")
	}
}

// A rule says which words a text needs or excludes. The matcher knows none of them.
type rule struct {
	words *regexp.Regexp // of the text
	need  *regexp.Regexp // of the functions, separated by spaces
}

var textRules = []rule{
	{regexp.MustCompile(`^vacuum:`), regexp.MustCompile(`\b(vacuum_rel|ExecVacuum|do_autovacuum|parallel_vacuum_main)\b`)},
	{regexp.MustCompile(`^analyze:`), regexp.MustCompile(`\banalyze_rel\b`)},
	{regexp.MustCompile(`\bsort`), regexp.MustCompile(`(?i)sort|ExecUnique|MergeJoin|MergeAppend|IncrementalSort`)},
	{regexp.MustCompile(`hash table`), regexp.MustCompile(`(?i)hash`)},
	{regexp.MustCompile(`\bcommits\b`), regexp.MustCompile(`Commit`)},
	{regexp.MustCompile(`rolls back`), regexp.MustCompile(`Abort|Rollback`)},
	{regexp.MustCompile(`\bGIN\b`), regexp.MustCompile(`\bgin`)},
	{regexp.MustCompile(`\bB-tree`), regexp.MustCompile(`\b_?bt`)},
	{regexp.MustCompile(`PL/pgSQL`), regexp.MustCompile(`\bplpgsql_`)},
	{regexp.MustCompile(`\bWAL\b`), regexp.MustCompile(`(?i)xlog|wal|decoding`)},
	{regexp.MustCompile(`\bCOPY\b`), regexp.MustCompile(`Copy`)},
	{regexp.MustCompile(`^plans`), regexp.MustCompile(`planner`)},
	{regexp.MustCompile(`trigger`), regexp.MustCompile(`Trigger`)},
	{regexp.MustCompile(`foreign key`), regexp.MustCompile(`\b(RI|ri)_`)},
	{regexp.MustCompile(`checkpoint`), regexp.MustCompile(`(?i)checkpoint`)},
	{regexp.MustCompile(`replays WAL`), regexp.MustCompile(`StartupXLOG`)},
	{regexp.MustCompile(`builds an index`), regexp.MustCompile(`index_build|_bt_parallel_build_main|validate_index`)},
	{regexp.MustCompile(`from disk|temporary file`), regexp.MustCompile(`File|Tape|pread|pgaio|mdread|mergeread|ReorderBuffer`)},
	{regexp.MustCompile(`flushes`), regexp.MustCompile(`sync|Sync`)},
	{regexp.MustCompile(`\b[Ll]ock\b.*held by|waits for a lock|waits for the row|queue for a row`), regexp.MustCompile(`ProcSleep`)},
}

// waitRules: a wait needs one of these words in the text.
var waitRules = []rule{
	{regexp.MustCompile(`^Lock/`), regexp.MustCompile(`wait`)},
	{regexp.MustCompile(`^LWLock/`), regexp.MustCompile(`wait|spins`)},
	{regexp.MustCompile(`^BufferPin/`), regexp.MustCompile(`pin`)},
	{regexp.MustCompile(`^IO/WalSync$`), regexp.MustCompile(`flush|WAL`)},
	{regexp.MustCompile(`^IO/DataFileRead$`), regexp.MustCompile(`read`)},
	{regexp.MustCompile(`^IO/DataFileWrite$`), regexp.MustCompile(`write|room`)},
	{regexp.MustCompile(`^IO/DataFileExtend$`), regexp.MustCompile(`extend|writes|builds`)},
	{regexp.MustCompile(`^IO/BufFile`), regexp.MustCompile(`temporary|disk`)},
	{regexp.MustCompile(`^Client/ClientWrite$`), regexp.MustCompile(`client|sends|replica`)},
	{regexp.MustCompile(`^IPC/SyncRep$`), regexp.MustCompile(`synchronous standby`)},
	{regexp.MustCompile(`^Timeout/VacuumDelay$`), regexp.MustCompile(`pauses`)},
}

// contradictions returns the statements of the text that contradict the stack or the wait.
func contradictions(s *sample, text string) (out []string) {
	functions := strings.Join(s.functions, " ")
	for _, r := range textRules {
		if r.words.MatchString(text) && !r.need.MatchString(functions) {
			out = append(out, fmt.Sprintf("the text has %s, no function has %s", r.words, r.need))
		}
	}
	wait := strings.NewReplacer("WALSync", "WalSync", "Buffile", "BufFile").Replace(s.waitType + "/" + s.waitEvent)
	for _, r := range waitRules {
		if r.words.MatchString(wait) && !r.need.MatchString(text) {
			out = append(out, fmt.Sprintf("waits for %s, the text lacks %s", wait, r.need))
		}
	}
	return out
}

func TestNoContradictions(t *testing.T) {
	_, samples := keyed(t, "proofs.txt")
	for _, major := range majors {
		samples = append(samples, readSamples(t, fmt.Sprintf("mixed-%d.txt", major))...)
	}
	for _, s := range samples {
		p := MatchPhrase(s.input())
		if p.Key == "" || p.Generic {
			continue
		}
		for _, c := range contradictions(s, p.Text) {
			t.Errorf("%d, %s: %q: %s\n%s", s.major, s.situation, p.Text, c, s.line())
		}
	}
	t.Logf("%d stacks", len(samples))
}

// The measured coverage of the distinct stacks of the mixed load, in percent.
var coverage = map[int]int{14: 94, 18: 94}

func TestCoverageOfMixedLoad(t *testing.T) {
	for _, major := range majors {
		covered, all := 0, 0
		var missing []string
		for _, s := range readSamples(t, fmt.Sprintf("mixed-%d.txt", major)) {
			all++
			if p := MatchPhrase(s.input()); p.Key != "" && !p.Generic {
				covered++
			} else {
				missing = append(missing, s.line())
			}
		}
		t.Logf("PostgreSQL %d: %d of %d distinct stacks have a phrase", major, covered, all)
		if covered*100 < coverage[major]*all {
			t.Errorf("PostgreSQL %d: less than %d %%", major, coverage[major])
		}
		if testing.Verbose() {
			for _, line := range missing {
				t.Log(line)
			}
		}
	}
}

// stack returns functions innermost first, from names outermost first.
func stack(names string) []string {
	out := strings.Fields(names)
	slices.Reverse(out)
	for i := range out {
		out[i] = strings.TrimPrefix(out[i], "?") // a frame without a name
	}
	return out
}

const rowWait = "main PostmasterMain PostgresMain PortalRun standard_ExecutorRun ExecModifyTable ExecUpdate heapam_tuple_update heap_update XactLockTableWait LockAcquireExtended ProcSleep WaitLatch epoll_wait"

func TestLongestTextWithKnownFields(t *testing.T) {
	in := PhraseInput{Functions: stack(rowWait), WaitType: "Lock", WaitEvent: "transactionid", Major: 18}
	for _, c := range []struct {
		fields map[string]string
		want   string
	}{
		{nil, "waits until another transaction ends, for a row that it has changed or locked"},
		{map[string]string{"relation": "stock"}, "waits for a row of stock"},
		{map[string]string{"relation": "stock", "holder": "4709"}, "waits for a row of stock, held by 4709"},
		{map[string]string{"relation": "stock", "holder": "4709", "tuple": "(0,1)"}, "waits for the row (0,1) of stock, held by 4709"},
		{map[string]string{"relation": "{holder}", "holder": "4709"}, "waits for a row of {holder}, held by 4709"},
		{map[string]string{"relation": ""}, "waits until another transaction ends, for a row that it has changed or locked"},
	} {
		in.Fields = c.fields
		if p := MatchPhrase(in); p.Text != c.want || p.Key != "lock-row" {
			t.Errorf("%v: %+v, want %q", c.fields, p, c.want)
		}
	}
}

// TestSimilarSituationsAreNotConfused has the exact texts of stacks that differ only in the wait event, in the fields, or in a frame
// further inwards from another, more frequent situation.
func TestSimilarSituationsAreNotConfused(t *testing.T) {
	const (
		prepared = "PostgresMain ExecuteQuery GetCachedPlan RevalidateCachedQuery AcquirePlannerLocks ScanQueryForLocks LockRelationOid LockAcquireExtended ProcSleep WaitLatch"
		unique   = "PostgresMain ExecInsert ExecInsertIndexTuples btinsert _bt_doinsert XactLockTableWait LockAcquireExtended ProcSleep WaitLatch"
		replay   = "StartupProcessMain StartupXLOG PerformWalRecovery ReadRecord XLogPageRead "
		walPage  = "PostgresMain ExecModifyTable ExecUpdate heapam_tuple_update heap_update XLogInsert XLogInsertRecord AdvanceXLInsertBuffer LWLockAcquire PGSemaphoreLock"
		cascade  = "PostgresMain AfterTriggerEndQuery ExecCallTriggerFunc RI_FKey_cascade_del ri_PerformCheck SPI_execute_snapshot standard_ExecutorRun ExecModifyTable "
	)
	fields := map[string]string{"relation": "plain", "mode": "AccessShareLock", "holder": "4709"}
	for _, c := range []struct {
		stack, wait string
		fields      map[string]string
		want        string
	}{
		{prepared, "Lock/relation", fields, "waits for the lock AccessShareLock on plain, held by 4709"},
		{prepared, "Lock/relation", map[string]string{"relation": "plain"}, "waits for a lock on plain"},
		{prepared, "Lock/relation", nil, "waits for a lock on a partition or another table of the statement"},
		{replay + "WaitLatch", "Activity/RecoveryWalStream", nil, "replays WAL: waits for more WAL"},
		{replay + "recoveryPausesHere ConditionVariableTimedSleep WaitLatch", "IPC/RecoveryPause", nil, "replays no WAL: replay is paused"},
		{replay + "ConditionVariableTimedSleep WaitLatch", "", nil, ""},
		{"StartupProcessMain StartupXLOG recoveryPausesHere ConditionVariableTimedSleep WaitLatch", "IPC/RecoveryPause", nil, "replays no WAL: replay is paused"},
		// PostgreSQL names the unique index, or the table of an exclusion constraint.
		{replay + "WaitForWALToBecomeAvailable XLogFileReadAnyTLI XLogFileRead RestoreArchivedFile ? wait4", "IPC/RestoreCommand", nil, "replays WAL: reads it"},
		{"StartupProcessMain StartupXLOG PerformWalRecovery ? ? RestoreArchivedFile ? wait4", "IPC/RestoreCommand", nil, "replays WAL: reads it"},
		{"StartupProcessMain StartupXLOG existsTimeLineHistory RestoreArchivedFile ? wait4", "IPC/RestoreCommand", nil, ""},
		{unique, "Lock/transactionid", map[string]string{"relation": "t_pkey", "holder": "4709"}, "waits for 4709, which has inserted, changed or deleted a row with an equal or conflicting key in t_pkey"},
		{unique, "Lock/transactionid", map[string]string{"holder": "4709"}, "waits for 4709, which has inserted, changed or deleted a row with an equal or conflicting key"},
		{"PostgresMain ExecInsert _bt_doinsert LockBufferInternal PGSemaphoreLock", "Buffer/BufferExclusive", nil, "waits for a page that another session changes or reads"},
		{"PostgresMain ExecInsert _bt_doinsert LockBuffer PGSemaphoreLock", "Buffer/BufferShared", nil, "waits for a page that another session changes or reads"},
		{"PostgresMain exec_simple_query errfinish EmitErrorReport write", "", nil, "writes a message to the server's log or to the client"},
		{"PostgresMain ExecRepack cluster_rel copy_table_data heapam_relation_copy_for_cluster", "", nil, "VACUUM FULL, CLUSTER or REPACK: copies the table"},
		{cascade + "ExecScan SeqNext", "", nil, "checks a foreign key: scans the whole referencing table"},
		{cascade + "ExecBRDeleteTriggers ExecCallTriggerFunc plpgsql_call_handler standard_ExecutorRun ExecScan SeqNext", "", nil, "scans a table from its begin to its end"},
		{cascade + "ExecProcNode ExecInterpExpr fmgr_sql standard_ExecutorRun ExecSeqScanWithQual", "", nil, "scans a table from its begin to its end"},
		{walPage, "LWLock/WALWrite", nil, "updates a row: waits for another process to write WAL, because wal_buffers is full"},
		{walPage, "LWLock/WALBufMapping", nil, "updates a row: waits for an internal lock (LWLock)"},
	} {
		in := PhraseInput{Functions: stack(c.stack), Major: 19, Fields: c.fields}
		in.WaitType, in.WaitEvent, _ = strings.Cut(c.wait, "/")
		if p := MatchPhrase(in); p.Text != c.want {
			t.Errorf("%s, %s: %q, want %q", c.stack, c.wait, p.Text, c.want)
		}
	}
}

// TestWaitsExistInEachVersion: an entry whose wait events a version does not have would never match there.
func TestWaitsExistInEachVersion(t *testing.T) {
	for major := 14; major <= 19; major++ {
		data, err := os.ReadFile(fmt.Sprintf("../pg/levels/waits/%d.txt", major))
		if err != nil {
			t.Fatal(err)
		}
		has := map[wait]bool{{}: true} // also the process without a wait
		class := ""
		for word := range strings.FieldsSeq(strings.ToLower(string(data))) {
			if name, ok := strings.CutSuffix(word, ":"); ok {
				class = name
				has[wait{class, "*"}] = true
			} else {
				has[wait{class, word}] = true
			}
		}
		for _, e := range compiled().entries {
			known := func(w wait) bool { return has[wait{strings.ToLower(w.kind), strings.ToLower(w.event)}] }
			if e.first <= major && (e.last == 0 || major <= e.last) && len(e.waits) > 0 && !slices.ContainsFunc(e.waits, known) {
				t.Errorf("PostgreSQL %d has no wait event of %s", major, e.key)
			}
		}
	}
}

// TestEachTypeOfLock: a wait for each type of lock in pg_locks has a phrase, also if the stack has no function that is typical of it.
func TestEachTypeOfLock(t *testing.T) {
	functions := stack("main PostmasterMain PostgresMain extension LockAcquireExtended ProcSleep WaitLatch epoll_wait")
	for lock, want := range map[string]string{
		"relation": "waits for a lock on a table or an index", "extend": "waits until another session has extended a table or an index",
		"frozenid": "waits to update the oldest transaction id of the database, behind 4709",
		"page":     "waits for the lock of a page, held by 4709", "tuple": "waits in the queue for a row, behind another waiting session",
		"transactionid": "waits until the transaction of 4709 ends", "virtualxid": "waits for a lock, held by 4709",
		"spectoken":        "waits for a lock, held by 4709",
		"object":           "waits for a lock on a database, role, function or other object, held by 4709",
		"userlock":         "waits for a lock, held by 4709",
		"advisory":         "waits for an advisory lock, held by 4709",
		"applytransaction": "waits for 4709, which applies a part of the subscription's transaction",
	} {
		for _, major := range []int{14, 15, 16, 17, 18, 19} {
			if lock == "applytransaction" && major < 16 {
				continue
			}
			in := PhraseInput{Functions: functions, WaitType: "Lock", WaitEvent: lock, Major: major, Fields: map[string]string{"holder": "4709"}}
			if p := MatchPhrase(in); p.Text != want {
				t.Errorf("%s on %d: %+v, want %q", lock, major, p, want)
			}
		}
	}
}

func TestNoPhraseRatherThanAWrongOne(t *testing.T) {
	for name, in := range map[string]PhraseInput{
		"no frames":                  {},
		"unnamed frames":             {Functions: make([]string, 40)},
		"another program":            {Functions: stack("_start main run read")},
		"wait without its functions": {Functions: stack("main"), WaitType: "Lock", WaitEvent: "transactionid"},
		"version not known":          {Functions: stack("IoWorkerMain pgaio_io_perform_synchronously"), BackendType: "io worker"},
		"another type":               {Functions: stack("heap_redo"), BackendType: "client backend", Major: 18},
	} {
		if p := MatchPhrase(in); p != (Phrase{}) {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// TestPhrasesOfStacksWithinAFunction: if a function does several things in turn, the phrase names the one in the stack.
func TestPhrasesOfStacksWithinAFunction(t *testing.T) {
	const (
		drop   = "PostgresMain PortalRunUtility standard_ProcessUtility dropdb "
		gather = "PostgresMain standard_ExecutorRun ExecGather gather_readnext TupleQueueReaderNext shm_mq_receive "
	)
	for _, c := range []struct{ stack, wait, want string }{
		{drop + "CountOtherDBBackends pg_usleep", "", "DROP DATABASE"},
		{
			drop + "WaitForProcSignalBarrier ConditionVariableTimedSleep WaitLatch WaitEventSetWait epoll_wait", "IPC/ProcSignalBarrier",
			"DROP DATABASE: waits until all processes of the server have processed a barrier event",
		},
		{drop + "remove_dbtablespaces rmtree unlink", "", "DROP DATABASE: removes its files"},
		{gather + "shm_mq_receive_bytes", "", "reads rows of parallel workers"},
		{gather + "WaitLatch epoll_wait", "IPC/MessageQueueReceive", "waits for rows of parallel workers"},
		{"PostgresMain standard_ExecutorRun ExecGather gather_readnext WaitLatch", "IPC/ExecuteGather", "waits for rows of parallel workers"},
	} {
		in := PhraseInput{Functions: stack(c.stack), Major: 18}
		in.WaitType, in.WaitEvent, _ = strings.Cut(c.wait, "/")
		if p := MatchPhrase(in); p.Text != c.want {
			t.Errorf("%s, %s: %q, want %q", c.stack, c.wait, p.Text, c.want)
		}
	}
}

// TestAdviceNamesNoCauseAlone: these situations have several causes.
func TestAdviceNamesNoCauseAlone(t *testing.T) {
	for key, wrong := range map[string]string{
		"syncrep": "No listed standby", "walreceiver-wait": "has sent everything", "alter-rewrite": "The table is locked",
		"lock-extend": "same table.",
	} {
		if advice := entryOf(t, key).advice; strings.Contains(advice, wrong) {
			t.Errorf("%s: %s", key, advice)
		}
	}
}

func TestSuffixesOfCompilersIgnored(t *testing.T) {
	for _, suffix := range []string{"", ".isra.0", ".constprop.0", ".part.3", ".cold", ".isra.0.cold", ".lto_priv.1", "@plt"} {
		if p := MatchPhrase(PhraseInput{Functions: stack("PostgresMain DoCopyTo" + suffix + " write"), Major: 18}); p.Key != "copy-to" {
			t.Errorf("%q: %+v", suffix, p)
		}
	}
}

func TestStepStandsWithinItsActivity(t *testing.T) {
	p := MatchPhrase(PhraseInput{Functions: stack("PortalRun standard_ExecutorRun SeqNext heapgetpage ReadBufferExtended mdread FileRead"), Major: 14})
	if p.Key != "read-page" || p.Within != "seqscan" || p.Text != "scans a table from its begin to its end: reads a page from disk" {
		t.Errorf("%+v", p)
	}
}

// Patterns of gaps, absence and ends, on a table of their own.
func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, stack string
		want           bool
	}{
		{"a b", "x a y b z", true}, {"a b", "b a", false}, {"a .. b", "a b", true},
		{"a > b", "a b", true}, {"a > b", "a y b", false}, {"a >1 b", "a y b", true}, {"a >1 b", "a y y b", false},
		{"a > b", "a y a b", true}, {"a > b c", "a b y a y c", true}, {"a|q b", "q b", true},
		{"a !c", "a b", true}, {"a !c", "a c", false}, {"a !c", "c a", true}, {"a !c", "a -", false},
		{"a $", "b a", true}, {"a $", "a b", false}, {"a $1", "a b", true},
	} {
		table, err := parse("k\n  stack: " + c.pattern + "\n  says: x\n  advice: y\n  page: z\n")
		if err != nil {
			t.Fatal(err)
		}
		functions := stack(c.stack)
		for i, name := range functions {
			if name == "-" {
				functions[i] = ""
			}
		}
		if got := table.match(PhraseInput{Functions: functions}).Key == "k"; got != c.want {
			t.Errorf("%q in %q: %v", c.pattern, c.stack, got)
		}
	}
}

func TestBadTablesRefused(t *testing.T) {
	const whole = "  stack: a\n  says: x\n  advice: y\n  page: z\n"
	for _, bad := range []string{
		"  stack: a\n", "k\n", "k\n" + whole + "k\n" + whole, "two words\n" + whole, "k\n  colour: red\n",
		"k\n  stack: \n" + whole, "k\n  stack: a $ b\n" + whole, "k\n  stack: a >x b\n" + whole, "k\n  stack: .. >\n" + whole,
		"k\n  says: {colour}\n" + whole, "k\n  stack: a\n  says: {relation}\n  advice: y\n  page: z\n",
		"k\n  kind: odd\n" + whole, "k\n  wait: Lock\n" + whole, "k\n  version: x\n" + whole,
	} {
		if _, err := parse(bad); err == nil {
			t.Errorf("accepted: %q", bad)
		}
	}
}

func TestDeepRecursionIsBounded(t *testing.T) {
	functions := make([]string, 100_000)
	for i := range functions {
		functions[i] = "ExecProcNode"
	}
	functions[0] = "mdread"
	if p := MatchPhrase(PhraseInput{Functions: functions}); p.Key != "read-page" {
		t.Errorf("%+v", p)
	}
}

func BenchmarkMatch(b *testing.B) {
	in := PhraseInput{Functions: stack(strings.Repeat("ExecNestLoop ExecAgg fetch_input_tuple ", 9) + rowWait), WaitType: "Lock", WaitEvent: "transactionid", Major: 18}
	in.Functions = in.Functions[:40]
	MatchPhrase(in)
	b.ReportAllocs()
	for b.Loop() {
		MatchPhrase(in)
	}
}

const document = "../../doc/internals/phrases.md"

// phrasesPage returns doc/internals/phrases.md: the phrases by page of PostgreSQL's manual, those with the same advice in one line.
func phrasesPage() string {
	var pages, advices []string
	phrases := map[string][]string{} // by page and advice
	for _, e := range PhraseEntries() {
		text := "`" + e.Key + "` " + e.Text
		if e.Kind != "" {
			text += " (*" + e.Kind + "*)"
		}
		if !slices.Contains(pages, e.Page) {
			pages = append(pages, e.Page)
		}
		if !slices.Contains(advices, e.Advice) {
			advices = append(advices, e.Advice)
		}
		phrases[e.Page+e.Advice] = append(phrases[e.Page+e.Advice], text)
	}
	var b strings.Builder
	b.WriteString("# Phrases\n\nThe phrases of stacks with their advice, made from `worker/moment/phrases.txt`. JSON, incidents and `top` have " +
		"both. Names\nin braces are filled in where they are known. A *step* stands behind the activity that it is a part of. A *generic* phrase\n" +
		"appears only if no other one is true. Each heading leads to a page of PostgreSQL's manual.\n")
	for _, page := range pages {
		fmt.Fprintf(&b, "\n## [%s](https://www.postgresql.org/docs/current/%s.html)\n\n", page, page)
		for _, advice := range advices {
			if list := phrases[page+advice]; list != nil {
				fmt.Fprintf(&b, "- %s. *%s*\n", strings.Join(list, "; "), advice)
			}
		}
	}
	return b.String()
}

func TestDocumentIsCurrent(t *testing.T) {
	page := phrasesPage()
	if *update {
		if err := os.WriteFile(document, []byte(page), 0o644); err != nil { // a public document
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != page {
		t.Error("doc/internals/phrases.md is old: run go test ./worker/moment -run TestDocument -update")
	}
}
