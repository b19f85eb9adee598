-- A query: the objects that can run code of others, or can take the place of the extension's objects, and that the
-- extension's scripts did not make.  One row for each.  The scripts, the worker and "doctor" all use it.
WITH RECURSIVE made (classid, objid) AS (   -- the members of the extension, and their row types, sequences and rules
    SELECT d.classid, d.objid
    FROM pg_depend d JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
    WHERE d.deptype = 'e' AND e.extname = 'pg_stat_backtrace'
    UNION
    SELECT d.classid, d.objid
    FROM made m JOIN pg_depend d ON d.refclassid = m.classid AND d.refobjid = m.objid AND d.deptype = 'i'
), relation (oid) AS (
    SELECT m.objid FROM made m JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid
    WHERE c.relkind IN ('r', 'v', 'S', 'c')
), datatype (oid) AS (
    SELECT m.objid FROM made m WHERE m.classid = 'pg_type'::regclass
), constraint_made (name, definition) AS (
    VALUES ('request_pkey', 'PRIMARY KEY (id)'),
        ('request_check', 'CHECK (((state = ''queued''::text) = (finished_at IS NULL)))'),
        ('request_check1', 'CHECK (((state = ''failed''::text) = (sqlstate IS NOT NULL)))'),
        ('request_kind_check', 'CHECK ((kind = ANY (ARRAY[''queued''::text, ''waiting''::text])))'),
        ('request_state_check', 'CHECK ((state = ANY (ARRAY[''queued''::text, ''done''::text, ''failed''::text])))')
), default_made (name, value) AS (
    VALUES ('kind', '''queued''::text'), ('state', '''queued''::text'), ('requested_at', 'clock_timestamp()')
), index_made (name, definition) AS (
    VALUES ('request_pkey', 'CREATE UNIQUE INDEX request_pkey ON backtrace.request USING btree (id)'),
        ('request_queued', 'CREATE INDEX request_queued ON backtrace.request USING btree (caller, id) '
            'WHERE (state = ''queued''::text)'),
        ('request_queued', 'CREATE INDEX request_queued ON backtrace.request USING btree (id) '     -- version 1.1
            'WHERE (state = ''queued''::text)')
), dependent (classid, objid) AS (   -- on schema backtrace
    SELECT d.classid, d.objid
    FROM made m JOIN pg_depend d ON d.refclassid = m.classid AND d.refobjid = m.objid
    WHERE m.classid = 'pg_namespace'::regclass
      -- These are never in a schema by themselves.
      AND d.classid <> ALL ('{pg_attrdef,pg_constraint,pg_policy,pg_publication_rel,pg_rewrite,pg_trigger}'::regclass[])
    EXCEPT
    SELECT m.classid, m.objid FROM made m
), foreign_object (classid, objid) AS (
    -- Of any class: functions, operators, tables, other extensions, default privileges, ...  Each role may also name the
    -- schema in an expression, as 'backtrace'::regnamespace in a temporary view.  The object with this expression depends on
    -- the schema, too, but is in another schema.
    SELECT d.classid, d.objid
    FROM dependent d LEFT JOIN LATERAL pg_identify_object(d.classid, d.objid, 0) i ON true
    WHERE (i.schema = quote_ident('backtrace')
           OR d.classid IN ('pg_extension'::regclass, 'pg_default_acl'::regclass, to_regclass('pg_publication_namespace')))
      -- Each role may set default privileges for its objects in any schema.
      AND NOT EXISTS (SELECT FROM pg_default_acl a JOIN pg_extension e ON e.extname = 'pg_stat_backtrace'
                      WHERE d.classid = 'pg_default_acl'::regclass AND a.oid = d.objid AND a.defaclrole <> e.extowner)
    UNION
    SELECT 'pg_trigger'::regclass, t.oid FROM relation r JOIN pg_trigger t ON t.tgrelid = r.oid
    WHERE NOT t.tgisinternal
    UNION
    SELECT 'pg_rewrite'::regclass, w.oid
    FROM relation r JOIN pg_class c ON c.oid = r.oid JOIN pg_rewrite w ON w.ev_class = r.oid
    WHERE c.relkind <> 'v' OR w.ev_type <> '1'
    UNION
    SELECT 'pg_policy'::regclass, p.oid FROM relation r JOIN pg_policy p ON p.polrelid = r.oid
    WHERE p.polname <> 'own' OR p.polcmd <> 'r' OR NOT p.polpermissive OR p.polroles <> '{0}' OR p.polwithcheck IS NOT NULL
       OR regexp_replace(pg_get_expr(p.polqual, p.polrelid), '[\n ]+', ' ', 'g')
          <> '((caller = ( SELECT (to_regrole(quote_ident((CURRENT_USER)::text)))::oid AS to_regrole)) '
             'OR ( SELECT pg_has_role(''pg_read_all_stats''::name, ''USAGE''::text) AS pg_has_role))'
    UNION
    SELECT 'pg_constraint'::regclass, c.oid FROM pg_constraint c
    WHERE c.contype <> 'n' AND NOT EXISTS (SELECT FROM constraint_made k
              WHERE k.name = c.conname AND k.definition = pg_get_constraintdef(c.oid) AND c.confrelid = 0)
      AND (c.conrelid IN (SELECT r.oid FROM relation r) OR c.confrelid IN (SELECT r.oid FROM relation r)
           OR c.contypid IN (SELECT t.oid FROM datatype t))
    UNION
    SELECT 'pg_attrdef'::regclass, d.oid
    FROM relation r JOIN pg_attrdef d ON d.adrelid = r.oid
         JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
    WHERE NOT EXISTS (SELECT FROM default_made k
                      WHERE k.name = a.attname AND k.value = pg_get_expr(d.adbin, d.adrelid) AND a.attgenerated = '')
    UNION
    SELECT 'pg_class'::regclass, i.indexrelid
    FROM relation r JOIN pg_index i ON i.indrelid = r.oid JOIN pg_class c ON c.oid = i.indexrelid
    WHERE NOT EXISTS (SELECT FROM index_made k WHERE k.name = c.relname AND k.definition = pg_get_indexdef(c.oid))
    UNION
    SELECT 'pg_class'::regclass, i.inhrelid FROM relation r JOIN pg_inherits i ON i.inhparent = r.oid
    UNION
    SELECT 'pg_class'::regclass, i.inhparent FROM relation r JOIN pg_inherits i ON i.inhrelid = r.oid
    UNION
    SELECT 'pg_statistic_ext'::regclass, s.oid FROM relation r JOIN pg_statistic_ext s ON s.stxrelid = r.oid
    UNION
    SELECT 'pg_cast'::regclass, c.oid FROM datatype t JOIN pg_cast c ON t.oid IN (c.castsource, c.casttarget)
    -- Each role may create casts of its types.  The extension passes no value of such a type, and none to such a type.
    WHERE NOT EXISTS (SELECT FROM pg_type x JOIN pg_extension e ON e.extname = 'pg_stat_backtrace'
                      WHERE x.oid IN (c.castsource, c.casttarget) AND x.typowner <> e.extowner
                        AND x.typnamespace <> 'pg_catalog'::regnamespace
                        AND NOT EXISTS (SELECT FROM datatype y WHERE y.oid = x.oid))
)
SELECT pg_describe_object(f.classid, f.objid, 0) FROM foreign_object f
UNION
SELECT 'default value of ' || pg_describe_object('pg_type'::regclass, t.oid, 0)
FROM datatype d JOIN pg_type t ON t.oid = d.oid WHERE t.typdefault IS NOT NULL
ORDER BY 1
