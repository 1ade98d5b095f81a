-- SPDX-License-Identifier: Apache-2.0
-- The node's superuser has the schema's own name, so "$user" in its search_path would show what is
-- the node's own in \d, and put new tables there.

DO $$
BEGIN
    IF current_user = 'penstock' THEN
        ALTER ROLE penstock SET search_path = public;
    END IF;
END
$$;
