-- How values are held that the lake's types have no room for (penstock.change.mapping).
ALTER TABLE penstock.subscription_option
    ADD COLUMN numeric_as text NOT NULL DEFAULT 'decimal'
        CHECK (numeric_as IN ('decimal', 'text')),
    ADD COLUMN datetime_as text NOT NULL DEFAULT 'timestamp'
        CHECK (datetime_as IN ('timestamp', 'text')),
    ADD COLUMN array_as text NOT NULL DEFAULT 'list'
        CHECK (array_as IN ('list', 'text')),
    ADD COLUMN infinity_as text NOT NULL DEFAULT 'error'
        CHECK (infinity_as IN ('error', 'clamp'));
