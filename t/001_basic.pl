# The functions in the catalog and for a caller without special rights: signature, privileges, STRICT, invalid
# arguments, the caller itself, the error when no worker runs, and DROP/CREATE EXTENSION.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use Worker qw($FRAME call proc_status);

my $node = PostgreSQL::Test::Cluster->new('basic');
$node->init;
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION pg_stat_backtrace');

# Signature and properties.
for my $expected ([ 'pg_get_backtrace', 'text' ], [ 'pg_log_backtrace', 'boolean' ])
{
	my ($name, $type) = @$expected;
	is( $node->safe_psql(
			'postgres', qq{
		SELECT pg_get_function_identity_arguments(p.oid), p.prorettype::regtype, p.provolatile, p.proisstrict,
		       p.proparallel, p.proretset, e.extname
		FROM pg_proc p
		JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
		JOIN pg_extension e ON e.oid = d.refobjid
		WHERE p.oid = '$name(int)'::regprocedure}),
		"pid integer|$type|v|t|r|f|pg_stat_backtrace",
		"$name: signature, VOLATILE STRICT PARALLEL RESTRICTED");
	is( $node->safe_psql(
			'postgres', qq{
		SELECT count(*) FROM pg_proc p, aclexplode(p.proacl) a WHERE p.proname = '$name' AND a.grantee = 0}),
		'0', "$name: PUBLIC has no EXECUTE");
}

$node->safe_psql('postgres', 'CREATE ROLE nobody_special LOGIN');
for my $function (qw(pg_get_backtrace pg_log_backtrace))
{
	my (undef, $level, $state) = call($node, "SELECT $function(1)", role => 'nobody_special');
	is("$level $state", 'ERROR 42501', "$function: a role without EXECUTE is refused");
	is($node->safe_psql('postgres', "SELECT $function(NULL) IS NULL"), 't', "$function: NULL in, NULL out");
}

# Without a worker the error comes at once, with a hint.
my $start = time;
my $other = $node->background_psql('postgres');
my $pid   = Worker::backend_pid($other);
my ($out, $level, $state, $stderr) = call($node, "SELECT pg_get_backtrace($pid)");
is("$level $state", 'ERROR 55000', 'no worker: ERROR 55000');
like($stderr, qr/HINT:.*pg_stat_backtrace worker/s, 'no worker: the hint says how to start it');
cmp_ok(time - $start, '<', 3, 'no worker: said at once');

my $worker = Worker->start($node);
my %status = proc_status($worker->pid);
is("$status{NoNewPrivs} $status{Seccomp}", '1 2', 'the worker has given up what it does not need');

# Arguments that name no process of the cluster give a warning, and the query continues.
for my $bad (-1, 0, -2147483648, 2147483647, 1, $$)
{
	($out, $level, $state, $stderr) = call($node, "SELECT pg_get_backtrace($bad) IS NULL, 'next'");
	is($out, 't|next', "pg_get_backtrace($bad) is NULL");
	is($level, 'WARNING', "pg_get_backtrace($bad) warns");
	($out, $level) = call($node, "SELECT pg_log_backtrace($bad), 'next'");
	is("$out $level", 'f|next WARNING', "pg_log_backtrace($bad) is false, and warns");
}

# The caller itself, and the postmaster.
for my $function (qw(pg_get_backtrace pg_log_backtrace))
{
	(undef, $level, $state) = call($node, "SELECT $function(pg_backend_pid())");
	is("$level $state", 'ERROR 55000', "$function: one's own backend");
	my $postmaster = $node->{_pid};
	(undef, $level, $state) = call($node, "SELECT $function($postmaster)");
	is("$level $state", 'ERROR 42501', "$function: the postmaster");
}

# A stack, also in transactions of every kind.
like($node->safe_psql('postgres', "SELECT pg_get_backtrace($pid)"), $FRAME, 'a stack');
for my $mode ('ISOLATION LEVEL READ COMMITTED', 'ISOLATION LEVEL SERIALIZABLE', 'READ ONLY',
	'ISOLATION LEVEL SERIALIZABLE READ ONLY')
{
	($out) = call($node, "BEGIN TRANSACTION $mode; SELECT pg_get_backtrace($pid); COMMIT");
	like($out, $FRAME, "a stack in a transaction: $mode");
}

# The extension needs only CREATE EXTENSION (every database has PL/pgSQL unless it was dropped). DROP EXTENSION leaves
# nothing.
is( $node->safe_psql('postgres', "SELECT DISTINCT requires FROM pg_available_extension_versions WHERE name = 'pg_stat_backtrace'"),
	'{plpgsql}', 'no other extension is required but PL/pgSQL');
my $objects = q{SELECT (SELECT count(*) FROM pg_proc), (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_namespace)};
$node->safe_psql('postgres', 'DROP EXTENSION pg_stat_backtrace');
my $before = $node->safe_psql('postgres', $objects);
for my $round (1 .. 3)
{
	$node->safe_psql('postgres', 'CREATE EXTENSION pg_stat_backtrace');
	like($node->safe_psql('postgres', "SELECT pg_get_backtrace($pid)"), $FRAME, "round $round: created again, it works");
	$node->safe_psql('postgres', 'DROP EXTENSION pg_stat_backtrace');
	is($node->safe_psql('postgres', $objects), $before, "round $round: DROP EXTENSION leaves nothing");
}

$other->quit;
is($worker->stop, 0, 'SIGTERM ends the worker with status 0');
ok(!-e $worker->pidfile, 'the worker has removed its pid file');
$node->stop;
done_testing();
