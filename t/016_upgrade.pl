# Versions of the extension and moves of its database: update, dump and restore, pg_upgrade.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker qw($FRAME call wait_until);

my $node = PostgreSQL::Test::Cluster->new('upgrade');
$node->init;
$node->start;
my $checkpointer = q{(SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer')};
my $seal         = q{SELECT typname FROM pg_type WHERE typnamespace = 'backtrace'::regnamespace AND typtype = 'd'};
my ($out, $level, $state, $stderr);

# catalog($db) describes each member of the extension in full: definition, owner, privileges, options, comment.
sub catalog
{
	my ($db) = @_;
	my $text = $node->safe_psql(
		$db, q{
SET search_path = pg_catalog;
SELECT pg_describe_object(d.classid, d.objid, 0), obj_description(d.objid, d.classid::regclass::name),
       CASE d.classid
       WHEN 'pg_proc'::regclass THEN (SELECT concat_ws(' ', pg_get_functiondef(p.oid), p.proowner::regrole, p.proacl)
           FROM pg_proc p WHERE p.oid = d.objid)
       WHEN 'pg_class'::regclass THEN (SELECT concat_ws(' ', c.relkind, c.relowner::regrole, c.relacl, c.reloptions,
               c.relrowsecurity, c.relforcerowsecurity, CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) END,
               (SELECT string_agg(concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
                    a.attstattarget, a.attstorage, a.attidentity, a.attacl, pg_get_expr(ad.adbin, ad.adrelid),
                    col_description(c.oid, a.attnum)), ', ' ORDER BY a.attnum)
                FROM pg_attribute a LEFT JOIN pg_attrdef ad ON ad.adrelid = a.attrelid AND ad.adnum = a.attnum
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
               (SELECT string_agg(pg_get_indexdef(i.indexrelid), ', ' ORDER BY 1) FROM pg_index i WHERE i.indrelid = c.oid),
               (SELECT string_agg(pg_get_constraintdef(n.oid), ', ' ORDER BY 1) FROM pg_constraint n WHERE n.conrelid = c.oid),
               (SELECT string_agg(concat_ws(' ', l.polname, l.polcmd, l.polroles, pg_get_expr(l.polqual, l.polrelid)), ', '
                ORDER BY 1) FROM pg_policy l WHERE l.polrelid = c.oid))
           FROM pg_class c WHERE c.oid = d.objid)
       WHEN 'pg_type'::regclass THEN (SELECT concat_ws(' ', t.typtype, t.typowner::regrole, t.typacl,
               (SELECT string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attnum)
                FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0))
           FROM pg_type t WHERE t.oid = d.objid)
       WHEN 'pg_namespace'::regclass THEN (SELECT concat_ws(' ', n.nspowner::regrole, n.nspacl)
           FROM pg_namespace n WHERE n.oid = d.objid)
       END
FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'pg_stat_backtrace'
WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
ORDER BY 1});
	$text =~ s/seal_[0-9a-f]{32}/seal/g;    # the name that each installation draws
	return join "\n", sort split /\n/, $text;
}

# After an update, version 1.0 with grants has the catalog of a fresh installation.
$node->safe_psql('postgres', 'CREATE DATABASE old; CREATE DATABASE new; CREATE ROLE reader LOGIN');
my $worker = Worker->start($node);
$node->safe_psql('old', q{CREATE EXTENSION pg_stat_backtrace VERSION '1.0'});
like($node->safe_psql('old', "SELECT pg_get_backtrace($checkpointer)"), $FRAME, 'the worker serves the extension 1.0');
is($node->safe_psql('old', "SELECT pg_log_backtrace($checkpointer)"), 't', 'its other function too');
$node->safe_psql('old', 'CREATE VIEW dependent AS SELECT pg_get_backtrace(1) AS b;
	GRANT EXECUTE ON FUNCTION pg_get_backtrace(int) TO reader');
$node->safe_psql('old', q{ALTER EXTENSION pg_stat_backtrace UPDATE});
like($node->safe_psql('old', "SELECT pg_get_backtrace($checkpointer)"), $FRAME, 'after the update');
is($node->safe_psql('old', q{SELECT to_regclass('backtrace.secret') IS NULL}), 't', 'the update drops the key');
is( $node->safe_psql('old', q{SELECT has_function_privilege('reader', 'pg_get_backtrace(int)', 'EXECUTE')}), 't',
	'and keeps what was granted');
$node->safe_psql('old', 'REVOKE EXECUTE ON FUNCTION pg_get_backtrace(int) FROM reader');
$node->safe_psql('new', 'CREATE EXTENSION pg_stat_backtrace');
my ($updated, $fresh) = (catalog('old'), catalog('new'));
is($updated, $fresh, 'an updated extension is a new one');
cmp_ok(scalar(split /\n/, $fresh), '>', 100, 'and not nothing');
is($node->safe_psql('new', 'SELECT extversion FROM pg_extension WHERE extname ~ $$backtrace$$'),
	$node->safe_psql('old', 'SELECT extversion FROM pg_extension WHERE extname ~ $$backtrace$$'), 'of the same version');

# In a schema other than public.
$node->safe_psql('new', 'DROP EXTENSION pg_stat_backtrace; CREATE SCHEMA "Odd one";
	CREATE EXTENSION pg_stat_backtrace SCHEMA "Odd one"');
is($node->safe_psql('new', 'SELECT count(*) > 3 FROM "Odd one".pg_stat_backtrace WHERE backtrace IS NOT NULL'), 't',
	'in another schema');

# Dump and restore: a new seal, and no row of the old table.
SKIP:
{
	my $dump = $node->basedir . '/old.sql';
	# (If the server has no pg_dump, the system's is used, which refuses servers newer than itself.)
	skip 'there is no pg_dump for this server', 6
	  unless $node->run_log([ 'pg_dump', '-f', $dump, '-d', $node->connstr('old') ]);
	unlike(slurp_file($dump), qr/backtrace\.(secret|request)/, 'the dump has no data of the extension');
	$node->safe_psql('postgres', 'CREATE DATABASE restored');
	$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('restored'), '-f', $dump ],
		'restore');
	is($node->safe_psql('restored', 'SELECT count(*) > 3 FROM pg_stat_backtrace WHERE backtrace IS NOT NULL'), 't',
		'the restored database works');
	# Only the data, into a database that already has the extension.
	my $data = $node->basedir . '/data.custom';
	$node->command_ok([ 'pg_dump', '-Fc', '-f', $data, '-d', $node->connstr('old') ], 'a dump to restore the data of');
	$node->command_ok([ 'pg_restore', '--data-only', '--exit-on-error', '-d', $node->connstr('restored'), $data ],
		'the data alone can be restored: there are none of the extension');
	isnt($node->safe_psql('restored', $seal), $node->safe_psql('old', $seal), 'with a seal of its own');
}

# pg_upgrade copies the extension unchanged.
SKIP:
{
	skip 'there is no pg_upgrade beside this server', 5 unless pg_upgrade();
	my $before = $node->safe_psql('old', $seal);
	my $after  = PostgreSQL::Test::Cluster->new('upgraded');
	$after->init;
	$worker->stop;
	$node->stop;
	chdir $after->basedir or die $!;    # pg_upgrade leaves its files where it runs
	command_ok(
		[   pg_upgrade(), '-d', $node->data_dir, '-D', $after->data_dir, '-b', $node->config_data('--bindir'), '-B',
			$after->config_data('--bindir'), '-s', $after->host, '-p', $node->port, '-P', $after->port ],
		'pg_upgrade');
	$after->start;
	is($after->safe_psql('old', $seal), $before, 'the seal came along');
	my $next = Worker->start($after);
	like($after->safe_psql('old', "SELECT pg_get_backtrace($checkpointer)"), $FRAME, 'the upgraded database works');
	is($after->safe_psql('old', 'SELECT count(*) > 3 FROM pg_stat_backtrace WHERE backtrace IS NOT NULL'), 't',
		'and so does the view');
	is($next->stop, 0, 'the worker ends');
}

# pg_upgrade is a client program, which some servers' folders do not have.
sub pg_upgrade
{
	my $program = $node->config_data('--bindir') . '/pg_upgrade';
	return -x $program ? $program : ();
}

done_testing();
