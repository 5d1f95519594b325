"""Views over the entries, for analytics with SQL. Their columns are a public interface and stay as they are.

    holdall_entries        every live entry: namespace text[], key, value jsonb, version, times, a file's size
    holdall_conversations  the conversations that `holdall.faces.conversations` archived
    holdall_messages       their messages, one row each

An entry that only resembles a conversation must not make a query over all conversations fail. So types are tested
before a field is converted to a time or a list.
"""

from __future__ import annotations

#: The query of the first view.
_LIVE_ENTRIES = """
        SELECT
            {schema}.labels(ns) AS namespace,
            key,
            {schema}.shown(value) AS value,
            version,
            {schema}.moment(created) AS created_at,
            {schema}.moment(updated) AS updated_at,
            {schema}.moment(expires) AS expires_at,
            size
        FROM {schema}.entries
        WHERE value IS NOT NULL
            AND (expires IS NULL OR expires > date_part('epoch', statement_timestamp()) * 1000000)
            AND NOT (ns >= '__holdall__' || chr(1) AND ns < '__holdall__' || chr(2))"""

VIEWS = (
    r"""
    -- The labels of a namespace, decoded from its stored form (`holdall.model.keys`).
    CREATE FUNCTION {schema}.labels(ns text) RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
        SELECT array_agg(replace(replace(label, chr(2) || chr(2), chr(1)), chr(2) || chr(3), chr(2)) ORDER BY number)
        FROM unnest(string_to_array(left(ns, -1), chr(1))) WITH ORDINALITY AS part (label, number)
    $$;
    -- A value as jsonb, which cannot hold NUL: U+FFFD stands for it.
    CREATE FUNCTION {schema}.shown(value text) RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
        SELECT CASE
            WHEN strpos(value, '\u0000') = 0 THEN value::jsonb
            ELSE regexp_replace(value, '(?<!\\)((?:\\\\)*)\\u0000', '\1\\ufffd', 'g')::jsonb
        END
    $$;
    CREATE FUNCTION {schema}.moment(microseconds bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
        SELECT timestamptz '1970-01-01 00:00:00+00' + microseconds * interval '1 microsecond'
    $$;
    CREATE FUNCTION {schema}.moment(value text) RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
    BEGIN
        RETURN value::timestamptz;
    EXCEPTION WHEN data_exception THEN
        RETURN NULL;
    END
    $$;
    CREATE VIEW {schema}.holdall_entries AS"""
    + _LIVE_ENTRIES
    + """;
    CREATE VIEW {schema}.holdall_conversations AS
        SELECT
            namespace[2] AS user_id,
            value ->> 'thread_id' AS thread_id,
            key,
            value ->> 'checkpoint_id' AS checkpoint_id,
            {schema}.moment(value ->> 'checkpoint_at') AS checkpoint_at,
            created_at AS archived_at,
            CASE WHEN jsonb_typeof(value -> 'messages') = 'array' THEN jsonb_array_length(value -> 'messages') END
                AS message_count,
            value -> 'messages' AS messages
        FROM {schema}.holdall_entries
        WHERE namespace[1] = 'users' AND namespace[3] = 'conversations' AND cardinality(namespace) = 3
            AND jsonb_typeof(value -> 'messages') = 'array' AND value ? 'thread_id' AND value ? 'checkpoint_at';
    CREATE VIEW {schema}.holdall_messages AS
        SELECT
            user_id,
            thread_id,
            key AS conversation,
            checkpoint_at,
            archived_at,
            (number - 1)::int AS position,
            message ->> 'id' AS id,
            message ->> 'type' AS type,
            message ->> 'name' AS name,
            message ->> 'content' AS text,
            message
        FROM {schema}.holdall_conversations
        CROSS JOIN LATERAL jsonb_array_elements(
            CASE WHEN jsonb_typeof(messages) = 'array' THEN messages ELSE '[]' END
        ) WITH ORDINALITY AS each_one (message, number);
"""
)

#: The first view again, without entries of deleted trees (`feed.DeletedTrees`).
REPLACED_VIEW = (
    """
    CREATE OR REPLACE VIEW {schema}.holdall_entries AS"""
    + _LIVE_ENTRIES
    + """
            AND NOT EXISTS (
                SELECT 1 FROM {schema}.trees AS tree
                WHERE version <= tree.until AND ns >= tree.low AND ns < tree.high
                    AND (expires IS NULL OR expires > tree.deleted)
                    AND (tree.path IS NULL OR (body IS NOT NULL AND key >= tree.path AND key < tree.path_high
                        AND (key = tree.path OR key >= tree.path_low)))
            );
"""
)
